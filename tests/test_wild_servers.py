"""Servers that answer with a million values, ask without end or stop half way: a share of the table that the benchmark
tries whole."""

import os, sys, textwrap

import anyio
import pytest
from conftest import ROOT

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec

sys.path.insert(0, str(ROOT / "tests/servers"))
from wild_table import all_modes, complaints, mode_row

SHARE = [
    "stdio: a million lists",
    "stdio: blocks of no known kind",
    "stdio: NaN and Infinity",
    "stdio: a pause of a year",
    "stdio: hang with a full pipe",
    "stdio: pings, and reads nothing",
    "stdio: tools: 20,000 tools",
    "stdio: tools: large schemas on every page",
    "http: many keys",
    "http: event: a million lists",
    "http: retry in a year",
    "http: pings in the answer",
]


def test_the_table_is_whole():
    names = [mode.what for mode in all_modes()]
    assert len(names) == len(set(names)) >= 40 and set(SHARE) <= set(names)


@pytest.mark.parametrize("mode", [mode for mode in all_modes() if mode.what in SHARE], ids=lambda mode: mode.what)
def test_no_call_is_late_and_nobody_else_notices(mode):
    row = mode_row(mode, timeout=10.0)
    assert not complaints(row, patience=10), (
        row
    )  # the benchmark is strict; a processor that others use too counts their time as ours


DATABASE = """
    import json, os, sqlite3, sys
    kept = sqlite3.connect(os.path.join(sys.argv[1], "notes.db"))
    if "late" not in sys.argv: kept.execute("CREATE TABLE IF NOT EXISTS notes(text)")
    def answer(id, **result): print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
    for line in sys.stdin:
        m = json.loads(line)
        if m.get("method") == "initialize":
            answer(m["id"], protocolVersion=m["params"]["protocolVersion"], capabilities={"tools": {}}, serverInfo={"name": "notes", "version": "1"})
        elif m.get("method") == "tools/list": answer(m["id"], tools=[{"name": "note", "inputSchema": {"type": "object"}}])
        elif m.get("method") == "tools/call":
            try:
                kept.execute("CREATE TABLE IF NOT EXISTS notes(text)")
                kept.execute("INSERT INTO notes VALUES ('mine')")
                kept.commit()
                said = str(kept.execute("SELECT count(*) FROM notes").fetchone()[0])
            except Exception as e: said = f"{type(e).__name__}: {e}"
            answer(m["id"], content=[{"type": "text", "text": f"{said} {os.getpid()}"}])
"""  # noqa: E501


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_server_that_keeps_its_database_open_is_replaced(tmp_path, caplog, when):
    "Its folder is reset after each episode, and the open file would be one that is no longer there."
    program = tmp_path / "notes.py"
    program.write_text(textwrap.dedent(DATABASE))
    name = f"notes{when}{os.getpid()}"
    spec = ServerSpec(
        name, command=sys.executable, args=[str(program), "{workdir}", when], isolation="workdir", processes=1
    )

    async def play():
        async with Pool({name: spec}) as pool:
            said = []
            for _ in range(4):
                async with await pool.lease([name]) as lease:
                    said.append((await lease.call(name, "note")).content)
            return said

    said = anyio.run(play)
    assert [text.split()[0] for text in said] == ["1"] * 4, said
    assert len({text.split()[1] for text in said}) == 4
    assert sum("could not be reset" in record.message and name in record.message for record in caplog.records) == 1, (
        caplog.text
    )
