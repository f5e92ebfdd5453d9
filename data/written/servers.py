"""The servers of the written questions; `python data/written/servers.py FOLDER` makes their content in FOLDER and
writes FOLDER/servers.json."""

import json, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/servers"), str(Path(__file__).resolve().parent)]
import servers_more
from make_content import make_content
from third_party import SERVERS, third_party

from mcp_grpo.client.spec import ServerSpec

WRITTEN = ("filesystem", "git", "sqlite", "motherduck", "time", "everything")
SETTINGS = {
    "SITE_NAME": "Harbour Lab",
    "RELEASE_CHANNEL": "beta",
    "SUPPORT_EMAIL": "help@harbourlab.example",
    "BACKUP_DAY": "Thursday",
    "MAX_UPLOAD_MB": "25",
    "WORKER_COUNT": "6",
    "OPENING_HOUR": "7",
    "CLOSING_HOUR": "19",
}


def written_servers(scratch: Path) -> dict[str, ServerSpec]:
    """The six servers by name, each with its content, which is made in `scratch`, a folder; without motherduck where
    its packages are not installed."""
    scratch = Path(scratch).resolve()
    make_content(scratch / "content", str(SERVERS / "py/bin/python"))
    changes = {
        "filesystem": {"template": str(scratch / "content/filesystem")},
        "git": {"template": str(scratch / "content/git")},
        "sqlite": {
            "template": str(scratch / "content/sqlite"),
            "args": ["--db-path", "{workdir}/shop.db"],
            "isolation": "workdir",
        },
        "motherduck": {
            "template": str(scratch / "content/motherduck"),
            "args": ["--db-path", "{workdir}/bakery.duckdb", "--read-write"],
        },  # its isolation stays "process": the server keeps its file open
        "time": {},
        "everything": {"env": SETTINGS, "public": list(SETTINGS)},
    }
    if not (scratch / "content/motherduck").exists():
        del changes["motherduck"]
    specs = third_party(scratch / "third-party")
    fields = {
        name: specs[name].spec.model_dump(exclude_defaults=True, exclude={"name"}) | more
        for name, more in changes.items()
    }
    return {name: ServerSpec(name, **{"max_result_chars": 4000, **more}) for name, more in fields.items()}


def all_servers(scratch: Path) -> dict[str, ServerSpec]:
    "The servers of all written questions by name, those of `servers_more` too."
    return servers_more.specs() | written_servers(scratch)


def write_servers_json(scratch: Path) -> Path:
    """Write the six servers as a file with `mcpServers`, as desktop clients have it, beside their content; returns the
    file."""
    entries = {
        name: spec.model_dump(exclude_defaults=True, exclude={"name"})
        for name, spec in written_servers(scratch).items()
    }
    path = Path(scratch).resolve() / "servers.json"
    path.write_text(json.dumps({"mcpServers": entries}, indent=2) + "\n")
    return path


if __name__ == "__main__":
    print(write_servers_json(Path(sys.argv[1])))
