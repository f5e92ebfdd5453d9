"""MCP servers that others wrote: how each is started, a call with its answer, and the calls that write and read what it
remembers."""

import asyncio, json, os, re, subprocess
from dataclasses import dataclass, field
from pathlib import Path

from mcp_grpo.client.pool import Pool, together
from mcp_grpo.client.spec import ServerSpec

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / ".servers"
NODE = "node_modules/@modelcontextprotocol"
QUIET = {"FASTMCP_CHECK_FOR_UPDATES": "off", "FASTMCP_SHOW_SERVER_BANNER": "false"}


@dataclass(frozen=True)
class ThirdParty:
    "One of them."

    part: str  # of .servers
    spec: ServerSpec
    call: tuple  # tool, arguments, part of the answer
    writes: list = field(
        default_factory=list
    )  # (tool, arguments with "{canary}"), ...; none where nothing is remembered
    read: tuple = ()

    @property
    def left_out(self) -> str:
        "Why it is not there; empty where it is."
        said = SERVERS / f"{self.part}.skipped"
        return said.read_text().strip() if said.exists() else ""


def git_repository(folder: Path) -> str:
    "A repository with one commit, to start from."
    who = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_CONFIG_GLOBAL": os.devnull,
    }
    folder.mkdir(parents=True)
    (folder / "README").write_text("first\n")
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "first commit"]):
        subprocess.run(["git", *command], cwd=folder, env=os.environ | who, check=True)
    return str(folder)


def third_party(scratch: Path) -> dict[str, ThirdParty]:
    "All of them by name; templates are made in `scratch`, a folder."

    def spec(name, command, args, **more):
        return ServerSpec(name, command=command, args=args, timeout=60, start_timeout=120, **more)

    def node(name, *args, **more):
        return spec(name, "node", [str(SERVERS / "node" / NODE / f"server-{name}/dist/index.js"), *args], **more)

    def python(part, name, *args, **more):
        return spec(name, str(SERVERS / part / "bin" / f"mcp-server-{name}"), list(args), **more)

    note, entity = {"path": "/workdir/note.txt"}, {"name": "{canary}", "entityType": "note", "observations": ["seen"]}
    repo, table = {"repo_path": "/workdir"}, "create table notes (note text)"
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    servers = [
        ThirdParty(
            "node",
            node("filesystem", "{workdir}", isolation="workdir"),
            ("list_allowed_directories", {}, "/workdir"),
            [("write_file", note | {"content": "{canary}"})],
            ("read_text_file", note),
        ),
        ThirdParty(
            "node",
            node("memory", env={"MEMORY_FILE_PATH": "{workdir}/memory.jsonl"}, isolation="workdir"),
            ("read_graph", {}, "entities"),
            [("create_entities", {"entities": [entity]})],
            ("read_graph", {}),
        ),
        ThirdParty("node", node("everything", isolation="shared"), ("get-sum", {"a": 2, "b": 40}, "42")),
        ThirdParty(
            "py",
            python(
                "py",
                "git",
                "--repository",
                "{workdir}",
                isolation="workdir",
                template=git_repository(scratch / "repository"),
                preload=["git"],
            ),
            ("git_log", repo, "first commit"),
            [("git_create_branch", repo | {"branch_name": "{canary}"})],
            ("git_branch", repo | {"branch_type": "local"}),
        ),
        ThirdParty(
            "py",
            python("py", "time", "--local-timezone", "UTC", isolation="shared"),
            ("convert_time", noon, "T21:00:00+09:00"),
        ),
        ThirdParty(
            "py",
            python(
                "py",
                "motherduck",
                "--db-path",
                ":memory:",
                "--read-write",
                env=QUIET,
                isolation="process",
                preload=["fastmcp.server.server"],
            ),
            ("execute_query", {"sql": "select 6 * 7 as x"}, "42"),
            [("execute_query", {"sql": table}), ("execute_query", {"sql": "insert into notes values ('{canary}')"})],
            ("execute_query", {"sql": "select * from notes"}),
        ),
        ThirdParty(
            "sqlite",
            python("sqlite", "sqlite", "--db-path", "{workdir}/notes.db"),
            ("read_query", {"query": "select 6 * 7 as x"}, "42"),
            [("create_table", {"query": table}), ("write_query", {"query": "insert into notes values ('{canary}')"})],
            ("read_query", {"query": "select * from notes"}),
        ),
    ]
    return {server.spec.name: server for server in servers}


async def episodes_at_once(pool: Pool, server: ThirdParty, episodes: int) -> list[str]:
    "What went wrong with so many at once, twice over, so that the second ones follow on others."
    everybody, said = asyncio.Barrier(episodes), []
    for again in range(2):
        canaries = [f"canary-{again}-{i}-" for i in range(episodes)]
        said += await together(lambda canary: episode(pool, server, canary, everybody), canaries)
    return [complaint for complaint in said if complaint]


async def episode(pool: Pool, server: ThirdParty, canary: str, everybody: asyncio.Barrier) -> str:
    "Write a canary while others write theirs, then look: what was wrong, or nothing."
    async with await pool.lease([server.spec.name]) as lease:

        async def call(tool, arguments):
            return await lease.call(
                server.spec.name, tool, json.loads(json.dumps(arguments).replace("{canary}", canary))
            )

        before = await call(*server.read)
        answers = [await call(*write) for write in server.writes]
        await everybody.wait()
        after = await call(*server.read)
        await everybody.wait()
    if faults := [a.content for a in (before, *answers, after) if a.fault]:
        return faults[0]
    if refused := [a.content for a in answers if a.is_error]:
        return f"it would not write: {refused[0]}"
    found = set(re.findall(r"canary-\d+-\d+-", before.content)), set(re.findall(r"canary-\d+-\d+-", after.content))
    return "" if found == (set(), {canary}) else f"it saw {found[0]} before, and {found[1]} after writing {canary}"
