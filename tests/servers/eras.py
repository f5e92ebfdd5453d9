"""Servers in both eras of MCP and over each transport: what is listed, called, kept apart, and taken for a fault.

A cell is a server in an era over a transport. A server that does not speak it itself is reached through `gateway.py`,
which is written with an SDK of that era."""

import asyncio, contextlib, json, os, signal, sys, tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import psutil
from third_party import SERVERS, third_party

from mcp_grpo.client.hardening.tools import PinError
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.session import Session, SessionError
from mcp_grpo.client.spec import ServerSpec, embedded_specs
from mcp_grpo.client.tape import Tape

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = str(Path(__file__).with_name("gateway.py"))
HEADER = "X-Episode"
OLD, NEW = "2025-11-25", "2026-07-28"
CELLS = [(OLD, "stdio"), (OLD, "http"), (OLD, "sse"), (NEW, "stdio"), (NEW, "http")]  # the new era has no SSE
PATIENT = 1.5  # seconds that a call may take where it is not answered on purpose


@dataclass(frozen=True)
class Served:
    "A server, and what it is asked."

    spec: ServerSpec  # over stdio
    call: tuple  # tool, arguments, part of the answer
    wrong: tuple  # tool, arguments: refused by the server, for the model to read
    writes: list = field(default_factory=list)  # (tool, arguments with "{canary}"), ...; none where nothing is kept
    read: tuple = ()
    both: bool = False  # whether it speaks both eras itself, over stdio
    node: str = ""  # the server's word for a transport of its own, with an address in its output
    part: str = ""  # of .servers; empty: of this project


def served(scratch: Path) -> dict[str, Served]:
    "Twelve servers by name; templates are made in `scratch`, a folder."
    sys.path.insert(0, str(ROOT / "data/written"))
    from servers_more import specs

    found, ours = third_party(scratch), embedded_specs(["polygon", "tavily", "slack", "python"], "stdio")
    channel = "C001"
    address = dict(
        user_id="yusuf_rossi_9620", address1="{canary}", address2="", city="a", state="b", country="c", zip="d"
    )
    more = {  # name: wrong call, whether it speaks both eras
        "filesystem": (("read_text_file", {"path": "/etc/passwd"}), False),
        "memory": (("add_observations", {"observations": [{"entityName": "nobody", "contents": ["x"]}]}), False),
        "everything": (("get-resource-reference", {"resourceType": "Text", "resourceId": -1}), False),
        "git": (("git_log", {"repo_path": "/etc"}), True),
        "time": (("convert_time", {"source_timezone": "Mars", "time": "1:00", "target_timezone": "UTC"}), True),
        "motherduck": (("execute_query", {"sql": "select * from nothing"}), True),
        "sqlite": (("read_query", {"query": "select * from nothing"}), False),
    }
    table = {
        "polygon": Served(
            ours["polygon"], ("get_market_status", {}, "market"), ("get_last_trade", {"ticker": "ZZZZZ"}), both=True
        ),
        "tavily": Served(
            ours["tavily"],
            ("tavily_search", {"query": "market", "max_results": 1}, "results"),
            ("tavily_extract", {"urls": ["nowhere"]}),
            both=True,
        ),
        "slack": Served(
            ours["slack"],
            ("slack_list_channels", {}, channel),
            ("slack_post_message", {"channel_id": "#nowhere", "text": "x"}),
            [("slack_post_message", {"channel_id": channel, "text": "{canary}"})],
            ("slack_get_channel_history", {"channel_id": channel}),
            both=True,
        ),
        "python": Served(
            ours["python"],
            ("execute_python", {"code": "6 * 7"}, "42"),
            ("execute_python", {"code": "1 / 0"}),
            [("execute_python", {"code": "kept = '{canary}'"})],
            ("execute_python", {"code": "kept"}),
            both=True,
        ),
        "retail": Served(
            specs(["retail"])["retail"],
            ("calculate", {"expression": "6 * 7"}, "42"),
            ("get_user_details", {"user_id": "nobody_0"}),
            [("modify_user_address", address)],
            ("get_user_details", {"user_id": address["user_id"]}),
            part="tau2_retail",
        ),
    }
    for name, (wrong, both) in more.items():
        one = found[name]
        table[name] = Served(one.spec, one.call, wrong, one.writes, one.read, both, part=one.part)
    table["everything"] = replace(table["everything"], node="streamableHttp sse")
    return table


def interpreter(era: str) -> str:
    "A Python that has the SDK of an era."
    return str(SERVERS / "sqlite/bin/python") if era == OLD else sys.executable


# ---- a cell


def native(server: Served, era: str, over: str) -> bool:
    "Whether the server speaks it itself."
    return era == OLD and (over == "stdio" or bool(server.node)) or era == NEW and over == "stdio" and server.both


@contextlib.asynccontextmanager
async def address_of(command: list[str], env: dict[str, str], line: str = "") -> AsyncIterator[str]:
    "Start a server that listens, and give the address that it prints; `line`: it is known, and said when it listens."
    process = await asyncio.create_subprocess_exec(
        *command,
        env=os.environ | env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if line else asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with anyio.fail_after(60):
            said = (await process.stdout.readline()).decode().strip()
            while line and "listening" not in said and "running on" not in said.lower():
                said = (await process.stdout.readline()).decode().strip()
        yield line or said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@contextlib.asynccontextmanager
async def cell(server: Served, era: str, over: str, header: str = HEADER, stateless: bool = False):
    "The spec that reaches a server in an era over a transport, and the relay in front of it, which makes faults."
    spec, command = server.spec, [server.spec.command, *server.spec.args]
    if over == "stdio":
        if not (era == OLD and native(server, era, over)):
            options = ["--pass"] if server.both else ["--over", "stdio"]
            words = [GATEWAY, *options, "--", *command]
            spec = spec.model_copy(update={"command": interpreter(era), "args": words, "preload": []})
        yield spec, None
        return
    env = {name: value for name, value in server.spec.env.items()}
    if native(server, era, over):
        port = free_port()
        words = [*command, server.node.split()[over == "sse"]]
        line = f"http://127.0.0.1:{port}/{'sse' if over == 'sse' else 'mcp'}"
        started = address_of(words, env | {"PORT": str(port)}, line)
    else:
        options = ["--over", over] + (["--header", header] if header and era == NEW else [])
        options += (["--template", spec.template] if spec.template else []) + ["--stateless"] * stateless
        started = address_of([interpreter(era), GATEWAY, *options, "--", *command], env)
    async with started as url, Relay(url) as relay:
        fields = {"sse": over == "sse", "timeout": spec.timeout, "start_timeout": spec.start_timeout}
        if spec.isolation == "shared":
            fields["isolation"] = "shared"
        elif era == NEW and header:
            fields["episode_header"] = header
        else:
            fields["isolation"] = "session"
        kept = {"max_result_chars": spec.max_result_chars, "deny": spec.deny, "output_schema": spec.output_schema}
        yield ServerSpec(spec.name, url=relay.url, retries=0, **fields, **kept), relay


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


class Relay:
    "Passes HTTP requests on to a server, except calls of tools while a fault is wanted."

    def __init__(self, url: str):
        host, _, path = url.removeprefix("http://").partition("/")
        self.target, self.path, self.fault = (host.split(":")[0], int(host.split(":")[1])), path, ""
        self.writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Relay":
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=2**26)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/{self.path}"
        return self

    async def __aexit__(self, *error) -> None:
        self.server.close()
        for writer in list(self.writers):
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, their_writer = None, None
        self.writers.add(writer)
        try:
            their_reader, their_writer = await asyncio.open_connection(*self.target, limit=2**26)
            self.writers.add(their_writer)
            back = asyncio.create_task(self.pass_back(their_reader, writer))
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line[15:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"0"
                )
                body = await reader.readexactly(int(length))
                if self.fault and b'"tools/call"' in body:
                    if self.fault == "drop":
                        return
                    writer.write(self.answer(json.loads(body)["id"]))
                    await writer.drain()
                else:
                    their_writer.write(head + body)
                    await their_writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if back:
                back.cancel()
            for one in filter(None, (writer, their_writer)):
                one.close()
                self.writers.discard(one)

    async def pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(2**16):
                writer.write(data)
                await writer.drain()
            writer.close()

    def answer(self, id) -> bytes:
        "What is sent in place of an answer."
        kind, status, body = b"text/plain", self.fault, b"no"
        if self.fault == "silence":  # the message is taken, and never answered
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n" if self.path.endswith("sse") else b""
        if self.fault == "huge":
            result = {"content": [{"type": "text", "text": "x" * 5_000_000}]}
            kind, status, body = (
                b"application/json",
                "200",
                json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode(),
            )
        return b"HTTP/1.1 %s No\r\nContent-Type: %s\r\nRetry-After: 60\r\nContent-Length: %d\r\n\r\n%s" % (
            status.encode(),
            kind,
            len(body),
            body,
        )


# ---- what is measured in it


async def reference(server: Served) -> tuple[str, str]:
    "The digest of a server's tools, and its answer to a call, as it is over stdio."
    async with Session(server.spec) as session:
        return session.toolbox.digest, (await session.call(*server.call[:2])).content


def family(pid: int) -> list[psutil.Process]:
    "A process and all that it has started."
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


async def stopped(spec: ServerSpec, server: Served, kill: bool) -> str | None:
    "The fault of a call that a stopped process does not answer; `kill`: and then is killed."
    async with Session(spec.model_copy(update={"timeout": 20.0 if kill else PATIENT})) as session:
        processes = family(session.process.child.pid)
        for process in processes:
            process.suspend()

        def kill_all() -> None:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

        async with anyio.create_task_group() as group:

            async def end() -> None:
                await anyio.sleep(0.3)
                kill_all()  # the session may have ended the rest of them when the first one died

            if kill:
                group.start_soon(end)
            result = await session.call(*server.call[:2])
        kill_all()
        return result.fault


async def relayed(spec: ServerSpec, server: Served, relay: Relay, wanted: list[str]) -> list[str | None]:
    "The faults of the calls of a session at which the relay makes these faults."
    found = []
    async with Session(spec.model_copy(update={"timeout": PATIENT})) as session:
        for relay.fault in wanted:
            found.append((await session.call(*server.call[:2])).fault)
        relay.fault = ""
    return found


async def faults_of(spec: ServerSpec, server: Served, relay: Relay | None) -> dict[str, tuple]:
    "What was made to fail: what the client took it for, and what it was."
    if relay is None:
        return {
            "no answer": (await stopped(spec, server, kill=False), "timeout"),
            "killed in a call": (await stopped(spec, server, kill=True), "crash"),
        }
    meant = {"silence": "timeout", "429": "rate_limit", "500": "transport", "drop": "transport", "huge": "too_large"}
    if spec.sse:  # a refused message ends the session, and an answer that is too large comes in a stream of its own
        found = await relayed(spec, server, relay, ["silence", "429"]) + await relayed(spec, server, relay, ["500"])
        found += await relayed(spec, server, relay, ["drop"])
    else:
        found = await relayed(spec, server, relay, list(meant))
    return {fault: (got, meant[fault]) for fault, got in zip(meant, found)}


async def refused(spec: ServerSpec) -> str:
    "Why no session opens; empty if one does."
    try:
        async with Session(spec):
            return ""
    except (SessionError, PinError) as error:
        return f"{type(error).__name__}: {error}"


async def on_tape(spec: ServerSpec, server: Served, folder: Path) -> tuple[str, str]:
    "The answer of a call that is recorded, and of the same call replayed where the server cannot be reached."
    found = []
    for mode, reached in (("record", spec), ("replay", spec)):
        with Tape(folder / "tape.db", mode) as tape:
            async with Pool({spec.name: reached}, tape) as pool, await pool.lease([spec.name]) as lease:
                found.append((await lease.call(spec.name, *server.call[:2])).content)
                opened = pool.stats()["sessions"]
    return found[0], found[1] if not opened else f"{opened} sessions were opened"


async def row(server: Served, era: str, over: str, known: tuple[str, str]) -> dict:
    "What a cell gave: complaints, and what was measured of its isolation and faults."
    digest, answer = known
    wrong, found = [], {"server": server.spec.name, "era": era, "over": over, "native": native(server, era, over)}

    def expect(what: str, got, meant) -> None:
        if got != meant:
            wrong.append(f"{what}: {str(got)[:300]}, not {str(meant)[:100]}")

    async with cell(server, era, over) as (spec, relay):
        async with Session(spec.model_copy(update={"pin": digest, "output_schema": "ignore"})) as session:
            expect("era", session.revision >= NEW, era == NEW)
            result = await session.call(*server.call[:2])
            expect("call", (result.fault, result.is_error, result.content), (None, False, answer))
            expect("in the answer", server.call[2] in result.content, True)
            result = await session.call(*server.wrong)
            expect("wrong call", (result.fault, result.is_error or "rror" in result.content), (None, True))
            result = await session.send("no_such_tool", {})
            expect("unknown tool", (result.fault, bool(result.content)), (None, True))
            found["tools"] = len(session.tools)
        denied = await refused(spec.model_copy(update={"pin": "0" * 64}))
        expect("a pin of other tools", "PinError" in denied, True)
        faults = await faults_of(spec, server, relay)
        for fault, (got, meant) in faults.items():
            expect(fault, got, meant)
        found["faults"] = len(faults) + 2
        if server.writes:
            async with Pool({spec.name: spec}) as pool:
                proof = await pool.prove(spec.name, write=server.writes, read=server.read)
            expect("isolation", (proof.level, proof.held), (spec.isolation, True))
            found["isolation"] = proof.level
        else:
            expect("isolation", (spec.isolation, spec.own_state), ("shared", False))
            found["isolation"] = "shared"
        with tempfile.TemporaryDirectory() as folder:
            expect("tape", await on_tape(spec, server, Path(folder)), (answer, answer))
    return found | {"wrong": wrong}


async def claimed(server: Served, spec: ServerSpec) -> str:
    "What becomes of a spec whose isolation the server does not give: why it is refused, or what is measured."
    if said := await refused(spec):
        return f"refused: {said}"
    async with Pool({spec.name: spec}) as pool:
        proof = await pool.prove(spec.name, write=server.writes, read=server.read)
    return f"measured: {proof.level}, held {proof.held}"


async def false_claims() -> dict[str, tuple[str, str]]:
    "Servers that cannot keep episodes apart, though their specs say so: what becomes of each, and what should."
    found, no_session, shared = {}, "gives no session", "measured: shared, held False"
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as common:
        server = served(Path(scratch))["memory"]
        async with cell(server, NEW, "http", header="") as (spec, _):
            found["no handshake, one state for all"] = await claimed(server, spec), no_session
            headed = spec.model_copy(update={"episode_header": HEADER})
            found["no handshake, and the header is ignored"] = await claimed(server, headed), shared
        async with cell(server, OLD, "http", stateless=True) as (spec, _):
            found["a handshake without a session"] = await claimed(server, spec), no_session
            headed = spec.model_copy(update={"episode_header": HEADER})
            found["no session, and the header is ignored"] = await claimed(server, headed), shared
        file = {"MEMORY_FILE_PATH": f"{common}/memory.jsonl"}
        for era in (OLD, NEW):
            async with cell(server, era, "stdio") as (spec, _):
                one = spec.model_copy(update={"env": file, "isolation": "process"})
                found[f"processes with a file in common, {era}"] = await claimed(server, one), shared
    return found


async def table(names: list[str], cells=CELLS) -> list[dict]:
    "The rows of these servers, or of all that are installed."
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, server in served(Path(scratch)).items():
            if names and name not in names:
                continue
            known = await reference(server)
            for era, over in cells:
                try:
                    with anyio.fail_after(600):
                        rows.append(await row(server, era, over, known))
                except Exception as error:
                    while isinstance(error, BaseExceptionGroup):
                        error = error.exceptions[0]
                    about = {"server": name, "era": era, "over": over, "native": native(server, era, over)}
                    failed = f"{type(error).__name__}: {error}"
                    rows.append(about | {"tools": 0, "faults": 0, "isolation": "unknown", "wrong": [failed]})
    return rows


if __name__ == "__main__":
    for one in anyio.run(table, sys.argv[1:2] and sys.argv[1].split(",")):
        print(json.dumps(one))
