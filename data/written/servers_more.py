"""The servers that the questions in this folder are about: a help desk and a library of our own, and three that others
wrote.

`python data/written/servers_more.py servers.json` writes their entries as an ordinary file with `mcpServers`.
"""

import json, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SERVERS = HERE.parents[1] / ".servers"
PARTS = {
    "retail": "tau2_retail",
    "airline": "tau2_airline",
    "people": "node",
}  # server that others wrote: the part of requirements/third-party with it


def entries() -> dict[str, dict]:
    "Return the entry of each server by name, as `mcpServers` has them."
    limits = {"isolation": "workdir", "timeout": 60.0, "start_timeout": 120.0}

    def own(name):
        return {
            "command": sys.executable,
            "args": [str(HERE / name / "server.py"), "--db", f"{{workdir}}/{name}.db"],
            "preload": ["mcp.server.mcpserver"],
        } | limits

    def tau2(domain):  # it keeps its state in memory and in a folder, and repeats a result in the record of the call
        state = {f"TAU2_{domain.upper()}_MCP_STATE_DIR": "{workdir}/state"}
        return (
            {
                "command": str(SERVERS / PARTS[domain] / f"bin/tau2-{domain}-mcp"),
                "env": state,
                "deny": ["reset_state", "get_call_log"],
                "max_result_chars": 8000,
            }
            | limits
            | {"isolation": "process"}
        )

    people = {
        "command": "node",
        "args": [str(SERVERS / "node/node_modules/@modelcontextprotocol/server-memory/dist/index.js")],
        "env": {"MEMORY_FILE_PATH": "{workdir}/memory.jsonl"},
        "template": str(HERE / "people"),
    } | limits
    return {
        "helpdesk": own("helpdesk"),
        "library": own("library"),
        "retail": tau2("retail"),
        "airline": tau2("airline"),
        "people": people,
    }


def specs(names=()):
    "Return a `ServerSpec` for each server named, or for all, by name."
    from mcp_grpo.client.spec import ServerSpec

    return {name: ServerSpec(name, **entry) for name, entry in entries().items() if not names or name in names}


def write_servers(path, names=()) -> None:
    "Write the entries of the servers named, or of all, as a file with `mcpServers`."
    chosen = {name: entry for name, entry in entries().items() if not names or name in names}
    Path(path).write_text(json.dumps({"mcpServers": chosen}, indent=2) + "\n")


if __name__ == "__main__":
    write_servers(sys.argv[1] if len(sys.argv) > 1 else "servers.json", sys.argv[2:])
