"Servers and tasks of one's own, exactly as the guides show them; test_docs.py trains on them."

import json, re, sys
from pathlib import Path

from conftest import ROOT, run, train_command

from mcp_grpo.client.spec import from_mcp_servers

BOOKS = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("books")

@server.tool()
def search(title: str) -> str:
    "The year a book appeared."
    return {"Emma": "1815"}.get(title, "unknown title")

server.run("stdio")
"""


def guide_blocks():
    "The JSON blocks of the guides on servers and tasks: a server list, two with fields of ours, a task row."
    cells = [
        cell
        for guide in ("servers", "tasks")
        for cell in json.loads((ROOT / f"nbs/guides/{guide}.ipynb").read_text())["cells"]
        if cell["cell_type"] == "markdown"
    ]
    return [
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", "\n".join("".join(cell["source"]) for cell in cells), re.S)
    ]


def guide_example(folder):
    "The guides' server list and task row, as files, with the server they speak of."
    servers, *_, row = guide_blocks()
    held_out = row | {"prompt": [row["prompt"][0], {"role": "user", "content": "In which year did Emma come out?"}]}
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "books_server.py").write_text(BOOKS)
    (folder / "books_heldout.json").write_text(json.dumps([held_out]))
    (folder / "servers.json").write_text(json.dumps(servers))
    (folder / "books.json").write_text(json.dumps([row]))
    return {"tasks": folder / "books.json"}, [
        f"servers.file={folder}/servers.json",
        "servers.names=[]",
        f"data.heldout={folder}/books_heldout.json",
    ]


def test_the_guides_servers_and_tasks_are_accepted(tmp_path):
    parameters, overrides = guide_example(tmp_path)
    done = run(train_command(tmp_path, parameters | {"dry_run": True}, overrides), tmp_path)
    assert done.returncode == 0, done.said[-2000:]
    assert "books: 1 tools" in (tmp_path / "stdout").read_text()


def test_the_guides_own_fields_are_understood(tmp_path):
    (tmp_path / "start").mkdir()
    (tmp_path / "servers.json").write_text(json.dumps(guide_blocks()[1]))
    files = from_mcp_servers(tmp_path / "servers.json")["files"]
    assert (files.isolation, Path(files.template)) == ("workdir", tmp_path / "start")
