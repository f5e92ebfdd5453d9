"""What broken, slow and hostile servers do to an episode: it ends as it should, its neighbours notice nothing, and no
process is left."""

import json, os, subprocess, sys, tempfile, time

import anyio
import psutil
import pytest
from conftest import ROOT

from mcp_grpo.client.hardening.tools import tools_digest
from mcp_grpo.client.pool import LeasedSession, Pool, together
from mcp_grpo.client.session import Session, SessionError, ToolResult, live_sessions
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.client.stdio import ServerProcess
from mcp_grpo.client.tape import Tape

sys.path.insert(0, str(ROOT / "tests/servers"))
import leaky
from fault_table import CASES, changed_tools, faulty, here_already, killed_parent, server_processes, table_row, until

TRIALS = 3


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left():
    "What the tests of this module started is gone when they are through."
    others = here_already()
    yield
    assert anyio.run(until, lambda: not server_processes(others))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
@pytest.mark.parametrize("era", [[], ["--new"]], ids=["old", "new"])
def test_fault_table(case, era):
    row = anyio.run(table_row, case, TRIALS, *era)
    assert row["held"] == TRIALS and not row["complaints"], row
    if case.tool.startswith("evil"):
        assert row["computing"] < 1, (
            row
            # seconds that the event loop was kept from its other episodes; the benchmark asks for 0.1, and the
            # expression
            # itself takes hours
        )
    if case.tool == "huge":
        assert row["seconds"] < 10 and (row["mb"] or 0) <= 20, (
            row
        )  # the benchmark asks for 1 s; reading all of it takes 13


def digest(*words) -> str:
    "Of the tools that `faulty` has at first."

    async def ask():
        async with Pool({"faulty": faulty(*words)}) as pool, await pool.lease(["faulty"]) as lease:
            return tools_digest(list(lease.tools("faulty").values()))

    return anyio.run(ask)


@pytest.mark.parametrize("era", [[], ["--new"]], ids=["old", "new"])
def test_a_changed_tool_list_is_refused(era):
    assert digest() == digest(*era)
    row = anyio.run(changed_tools, 2, digest(), *era)
    assert row["held"] == 2 and not row["complaints"], row


def test_kill_9_of_the_parent_leaves_no_process():
    assert not killed_parent()


async def with_lease(spec, use):
    "What `use(lease)` returns."
    with anyio.fail_after(120):
        async with Pool({spec.name: spec}) as pool, await pool.lease([spec.name]) as lease:
            return await use(lease)


# ---- what may be called again


def flaky(tmp_path, times: int, **more):
    "The result of a call that crashes its server so many times, and how often it reached one."
    path = tmp_path / "calls"

    async def use(lease):
        return await lease.call("faulty", "flaky", {"path": str(path), "times": times})

    return anyio.run(with_lease, faulty(**more), use), len(path.read_text().splitlines())


def test_an_idempotent_call_is_made_again(tmp_path):
    result, calls = flaky(tmp_path, 2, idempotent=["flaky"], retries=2)
    assert (result.fault, result.content, calls) == (None, "call 3", 3)


def test_and_not_for_ever(tmp_path):
    result, calls = flaky(tmp_path, 9, idempotent=["flaky"], retries=2)
    assert (result.fault, calls) == ("crash", 3)


def test_any_other_call_never_is(tmp_path):
    result, calls = flaky(tmp_path, 2, idempotent=["ok"], retries=2)
    assert (result.fault, calls) == ("crash", 1)


def test_nor_is_one_whose_session_had_something_to_lose(tmp_path):
    path = tmp_path / "calls"

    async def use(lease):
        await lease.call("faulty", "remember", {"text": "mine"})
        return await lease.call("faulty", "flaky", {"path": str(path), "times": 1})

    result = anyio.run(with_lease, faulty(idempotent=["flaky"], retries=2), use)
    assert (result.fault, len(path.read_text().splitlines())) == ("crash", 1)


# ---- what a server sees of this machine


def test_a_server_sees_little(monkeypatch, tmp_path):
    for name in ("PLANTED", "PLANTED_TOKEN", "ASKED_FOR"):
        monkeypatch.setenv(name, f"the-value-of-{name}")

    async def use(lease):
        return [
            (await lease.call("faulty", tool, args)).content
            for tool, args in (("surroundings", {}), ("env", {"name": "GIVEN"}))
        ]

    seen, given = anyio.run(with_lease, faulty(env={"GIVEN": "yes"}, pass_env=["ASKED_FOR"], public=["ASKED_FOR"]), use)
    seen = json.loads(seen)
    assert (
        "PLANTED" not in json.dumps(seen)
        and seen["environment"]["ASKED_FOR"] == "the-value-of-ASKED_FOR"
        and given == "yes"
    )
    assert (
        seen["home"] != os.environ.get("HOME")
        and seen["home_files"] == []
        and seen["cwd_files"] == []
        and seen["cwd"] != os.getcwd()
    )
    assert seen["files_open"] <= 5, "files of this process are open in the server"


def test_the_folder_is_the_same_and_clean_in_every_episode(tmp_path):
    (tmp_path / "template").mkdir()
    (tmp_path / "template/start.txt").write_text("from the template")
    spec = faulty("--workdir", "{workdir}", isolation="workdir", template=str(tmp_path / "template"), processes=1)

    async def use():
        seen = []
        async with Pool({"faulty": spec}) as pool:
            for i in range(3):
                async with await pool.lease(["faulty"]) as lease:
                    surroundings = json.loads((await lease.call("faulty", "surroundings")).content)
                    await lease.call("faulty", "note", {"text": f"note{i}"})
                    seen.append(
                        (
                            surroundings["pid"],
                            surroundings["cwd"],
                            json.loads((await lease.call("faulty", "notes")).content),
                        )
                    )
        return seen

    seen = anyio.run(use)
    assert len({pid for pid, _, _ in seen}) == 1 and {cwd for _, cwd, _ in seen} == {"/workdir"}
    assert [found for _, _, found in seen] == [
        {"notes": [f"note{i}"], "files": ["notes.txt", "start.txt"]} for i in range(3)
    ]


def test_a_false_promise_is_found_out():
    "A server that remembers in memory does not forget because its folder was emptied."

    async def prove(isolation):
        async with Pool({"faulty": faulty("--workdir", "{workdir}", isolation=isolation)}) as pool:
            return await pool.prove("faulty", write=("remember", {"text": "{canary}"}), read=("recall", {}))

    proofs = {isolation: anyio.run(prove, isolation) for isolation in ("process", "workdir", "shared")}
    assert {isolation: (proof.level, proof.held) for isolation, proof in proofs.items()} == {
        "process": ("process", True),
        "workdir": ("shared", False),
        "shared": ("shared", True),
    }, proofs


@pytest.mark.parametrize("mode", ["record", "auto"])
def test_a_tape_does_not_prove_anything(tmp_path, mode):
    async def prove():
        with Tape(tmp_path / "tape", mode) as tape:
            async with Pool({"faulty": faulty("--workdir", "{workdir}", isolation="workdir")}, tape) as pool:
                return await pool.prove("faulty", write=("remember", {"text": "{canary}"}), read=("recall", {}))

    assert anyio.run(prove).level == "shared"


def test_nor_does_a_read_that_fails():
    async def prove():
        async with Pool({"faulty": faulty(isolation="process")}) as pool:
            reading, call_live = [], LeasedSession.call_live

            async def fails_in_the_third(leased, tool, arguments):
                if tool == "recall" and leased not in reading:
                    reading.append(leased)
                    if len(reading) > 2:
                        return ToolResult("later", fault="rate_limit")
                return await call_live(leased, tool, arguments)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(LeasedSession, "call_live", fails_in_the_third)
                return await pool.prove("faulty", write=("remember", {"text": "{canary}"}), read=("recall", {}))

    proof = anyio.run(prove)
    assert (proof.level, proof.held) == ("unproved", False) and "had a fault" in proof.evidence


# ---- what a server leaves on the disk


def test_a_folder_too_deep_for_python_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other clients make folders in the usual place

    async def use():
        async with Pool({"faulty": faulty("--workdir", "{workdir}", isolation="workdir", processes=1)}) as pool:
            for _ in range(2):
                async with await pool.lease(["faulty"]) as lease:
                    found = json.loads((await lease.call("faulty", "notes")).content)
                    dug = await lease.call("faulty", "dig", {"levels": 1500})
            return found, dug, list(tmp_path.iterdir())

    found, dug, made = anyio.run(use)
    assert found == {"notes": [], "files": []} and dug.content == "done"
    assert made and not list(tmp_path.iterdir())


def test_a_session_that_cannot_be_made_ready_is_closed(monkeypatch):
    async def broken(process):
        raise OSError("a file went away")

    monkeypatch.setattr(ServerProcess, "settle", broken)

    async def use():
        async with Pool({"faulty": faulty("--workdir", "{workdir}", isolation="workdir")}) as pool:
            with pytest.raises(OSError):
                await pool.lease(["faulty"])
            return live_sessions()

    assert anyio.run(use) == 0


def test_complaints_do_not_fill_the_disk():
    async def use(lease):
        await lease.call("faulty", "complain", {"mb": 20})
        session = lease.session("faulty").session
        server = psutil.Process(session.process.child.pid)
        assert await until(lambda: server.io_counters().write_chars > 20_000_000)  # meanwhile nobody calls any more
        assert await until(lambda: session.error_log.size <= 8 * 2**20), session.error_log.size

    anyio.run(with_lease, faulty(), use)


# ---- limits that all episodes share


def test_rate_and_concurrency_hold_for_all_episodes():
    async def use(spec, seconds):
        async with Pool({"faulty": spec}) as pool:
            leases = await together(pool.lease, [["faulty"]] * 6)
            await leases[0].call("faulty", "ok", {"text": "warm"})
            start = time.monotonic()
            results = await together(lambda lease: lease.call("faulty", "slow", {"seconds": seconds}), leases)
            return time.monotonic() - start, {r.fault for r in results}

    shared = dict(isolation="shared", timeout=30)
    spent, faults = anyio.run(use, faulty(concurrency=2, **shared), 0.3)
    assert faults == {None} and spent >= 0.9  # three at two at a time
    spent, faults = anyio.run(use, faulty(rate=4, **shared), 0.0)
    assert faults == {None} and spent >= 0.45  # the first few at once, the rest at four a second


def test_calls_that_wait_behind_a_crash_are_made_by_the_next_session():
    async def use():
        async with Pool({"faulty": faulty(isolation="shared", concurrency=1)}) as pool:
            leases = await together(pool.lease, [["faulty"]] * 6)
            await leases[0].call("faulty", "ok", {"text": "warm"})
            return await together(
                lambda i: leases[i].call("faulty", *(("crash", {}) if i == 0 else ("ok", {"text": str(i)}))), range(6)
            )

    results = anyio.run(use)
    assert [(r.fault, r.content) for r in results[1:]] == [(None, str(i)) for i in range(1, 6)] and results[
        0
    ].fault == "crash"


def test_a_call_that_waits_is_not_made_in_the_next_episode():
    "Its own episode has left meanwhile."

    async def use():
        async with Pool({"faulty": faulty("--workdir", "{workdir}", isolation="workdir", processes=1, rate=1)}) as pool:
            late = []

            async def write(lease, text):
                late.append(await lease.call("faulty", "note", {"text": text}))

            async with anyio.create_task_group() as group:
                async with await pool.lease(["faulty"]) as lease:
                    for text in ("a", "b", "c", "d"):
                        group.start_soon(write, lease, text)
                    await anyio.sleep(0.05)
                async with await pool.lease(["faulty"]) as lease:
                    found = await lease.call("faulty", "notes")
            return json.loads(found.content)["notes"], {r.fault for r in late}

    found, faults = anyio.run(use)
    assert found == [] and faults - {None}


# ---- over HTTP


@pytest.fixture
def limited():
    "The URL of a server that says 'later'."
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/servers/limited.py")], stdout=subprocess.PIPE, text=True
    )
    yield server.stdout.readline().strip()
    server.kill()
    server.wait()
    server.stdout.close()


def over_http(url, *calls, **more):
    "The results of calls, and their seconds."

    async def use(lease):
        return [await lease.call("limited", *call) for call in calls]

    return anyio.run(with_lease, ServerSpec("limited", url=url, **({"timeout": 20.0} | more)), use)


def test_retry_after_is_honoured(limited):
    refused, counted = over_http(limited, ("limited", {"times": 1}), ("calls", {}))
    assert (refused.fault, refused.content, counted.content) == (
        None,
        "done",
        "limited",
    ) and refused.seconds >= 1  # carried out once


def test_a_limit_that_stays_is_a_fault_and_the_session_lives(limited):
    refused, after = over_http(limited, ("limited", {"times": 99}), ("ok", {"text": "after"}), retries=1)
    assert (refused.fault, after.fault, after.content) == ("rate_limit", None, "after")


def test_a_large_answer_is_cut_off(limited):
    large, after = over_http(limited, ("huge", {"mb": 50}), ("ok", {"text": "after"}))
    assert large.fault == "too_large" and large.seconds < 15
    assert not after.fault or after.fault == "transport"


def test_an_error_of_the_server_is_not_the_models(limited):
    for status in (302, 500, 503):  # the first as a gateway does whose login has run out
        (result,) = over_http(limited, ("fail", {"status": status}), retries=0)
        assert result.fault and not result.is_error, result


# ---- secrets


def test_no_secret_comes_out(tmp_path):
    hearts = leaky.run(tmp_path)
    assert len(hearts) == 10 and "[redacted]" in (tmp_path / "stdout").read_text()
    assert not leaky.found(tmp_path, hearts)


def test_no_unforeseen_secret_comes_out(tmp_path):
    hearts = leaky.run_unforeseen(tmp_path)
    said = (tmp_path / "stdout").read_text()
    assert len(hearts) >= 30 and len(leaky.UNFORESEEN) == 8 and (tmp_path / "log").read_text().count("DEBUG:") > 100
    assert (
        said.count("[redacted]") > 1000
        and "DefaultEndpointsProtocol" not in said
        and "/etc/ssl" in said
        and "eu-west" not in said
    )
    assert not leaky.found(tmp_path, hearts)


def test_planted_secrets_can_be_found(tmp_path):
    hearts, values = leaky.plant(leaky.UNFORESEEN)
    for name, say in leaky.teller.WAYS.items():
        (tmp_path / name).write_text("\n".join(say(value) for group in values.values() for value in group.values()))
        found = leaky.found(tmp_path, hearts)
        assert [heart for heart in hearts if f"{heart} in {name}" not in found] in ([], ["env BASIC"]), (
            name
        )  # base64 in base64


def test_a_secret_in_a_tool_list_is_cut_out():
    async def use(lease):
        return lease.tools("faulty")["ok"].description

    assert anyio.run(with_lease, faulty(env={"PHRASE_TOKEN": "as it came"}), use) == "The text, [redacted]."


DEAF = """
import json, sys, time
def say(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
while True:
    asked = json.loads(sys.stdin.readline())
    if asked["method"] == "initialize":
        version, about = asked["params"]["protocolVersion"], {"name": "deaf", "version": "1"}
        say(asked["id"], {"protocolVersion": version, "capabilities": {}, "serverInfo": about})
    if asked["method"] == "tools/list":
        say(asked["id"], {"tools": [{"name": "note", "inputSchema": {"type": "object", "properties": {"text": {}}}}]})
        time.sleep(600)
"""


def test_calls_that_wait_for_a_full_pipe_end_in_time(tmp_path):
    "A server that reads nothing more: all parallel calls end with their own timeout, not one after another."
    (tmp_path / "deaf.py").write_text(DEAF)

    async def use():
        async with Session(
            ServerSpec("deaf", command=sys.executable, args=[str(tmp_path / "deaf.py")], timeout=2.0)
        ) as session:
            began = time.monotonic()
            results = await together(lambda i: session.call("note", {"text": "x" * 20_000}), range(40))
            return results, time.monotonic() - began

    results, took = anyio.run(use)
    assert {result.fault for result in results} == {"timeout"} and took < 2.5


def price_server(structured):
    "A server whose tool promises a price, and sends this."
    from mcp.server.lowlevel import Server
    from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

    promised = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}

    async def tools(context, params=None):
        tool = Tool(name="price", input_schema={"type": "object"}, output_schema=promised)
        return ListToolsResult(tools=[tool])

    async def call(context, params):
        return CallToolResult(content=[TextContent(type="text", text="12")], structured_content=structured)

    return Server("market", on_list_tools=tools, on_call_tool=call)


@pytest.mark.parametrize("structured", [{"price": "high"}, {"cost": 1}, None, {"price": 1.5, "currency": "USD"}])
def test_a_result_that_breaks_its_servers_promise_is_no_mistake_of_the_model(structured):
    async def use(**more):
        async with Session(ServerSpec("market", server=lambda: price_server(structured), **more)) as session:
            return await session.call("price")

    kept = structured == {"price": 1.5, "currency": "USD"}
    result = anyio.run(use)
    assert (result.fault, result.is_error) == (None if kept else "broken_promise", False)
    assert kept or "not what its outputSchema promises" in result.content
    assert anyio.run(lambda: use(output_schema="ignore")).content == "12"


VAST = """
import json, sys
def say(id, result):
    print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        version, about = asked["params"]["protocolVersion"], {"name": "vast", "version": "1"}
        say(asked["id"], {"protocolVersion": version, "capabilities": {}, "serverInfo": about})
    if asked["method"] == "tools/list":
        say(asked["id"], {"tools": [{"name": f"tool_{n}", "inputSchema": schema} for n in range(500)]})
"""


def test_a_list_of_tools_that_is_too_large_is_said_to_be(tmp_path):
    (tmp_path / "vast.py").write_text(VAST)

    async def use():
        await Session(ServerSpec("vast", command=sys.executable, args=[str(tmp_path / "vast.py")])).open()

    with pytest.raises(SessionError, match="a message of more than 30,000 values"):
        anyio.run(use)
