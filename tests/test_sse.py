"""The old transport, HTTP with SSE: the SDK's own server, and servers that answer as none should. Every call ends in
its time with an answer or a fault, and nothing is sent to another origin."""

import asyncio
import contextlib
import json
import threading
import time

import anyio
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_grpo.aio import run_sync
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.session import Session, SessionError, live_sessions
from mcp_grpo.client.spec import ServerSpec

KEY = "open-sesame-4711-abcd"
TOOLS = [{"name": "do", "inputSchema": {"type": "object"}}]
INITIAL = {
    "initialize": {
        "protocolVersion": "2024-11-05",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    },
    "tools/list": {"tools": TOOLS},
}


class RawServer:
    "A server over SSE whose path says how it misbehaves, at its start or in the calls."

    def __init__(self):
        self.written, self.refused, self.requests = 0, 0, []
        self.streams = {}
        self.ready = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()), daemon=True)
        self.thread.start()
        self.ready.wait(30)

    async def run(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port, self.loop, self.stop = (
            server.sockets[0].getsockname()[1],
            asyncio.get_running_loop(),
            asyncio.Event(),
        )
        self.ready.set()
        await self.stop.wait()
        server.close()

    def close(self):
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(30)

    async def serve(self, reader, writer):
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(None, 2)
                self.requests.append((method, path))
                headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                mode = path.rpartition("/")[2]
                if method == "GET":
                    return await self.listen(writer, mode)
                await self.take(writer, mode, json.loads(body), headers)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def listen(self, writer, mode):
        "Serve the event stream of a session."
        if mode in ("missing", "moved", "away"):
            status = b"404 Not Found" if mode == "missing" else b"307 Moved"
            place = b"/sse/well" if mode == "moved" else b"http://127.0.0.2:9/sse"
            writer.write(
                b"HTTP/1.1 "
                + status
                + b"\r\nLocation: "
                + place
                + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            )
            return await writer.drain()
        kind = b"text/html" if mode == "page" else b"text/event-stream"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nConnection: close\r\n\r\n")
        place = "http://127.0.0.2:9/messages" if mode == "elsewhere" else f"/messages/{mode}"
        if mode != "silent":
            writer.write(f"event: endpoint\ndata: {place}\n\n".encode())
        self.streams[mode] = writer
        await writer.drain()
        while not writer.is_closing() and mode != "ended":
            await asyncio.sleep(0.05)

    async def take(self, writer, mode, message, headers):
        "Take a message, and answer it in the event stream."
        method, number = message["method"], message.get("id")
        if mode == "refused" or method == "tools/call" and mode in ("lost", "redirected", "stuck", "busy", "once"):
            if mode == "stuck":
                return await asyncio.sleep(60)
            if mode != "once" or not self.refused:
                self.refused += 1
                status = {"lost": "404 Not Found", "refused": "401 No", "redirected": "307 Moved"}.get(
                    mode, "429 Later"
                )
                more = "Location: http://127.0.0.2:9/messages\r\nRetry-After: 0.1\r\nContent-Length: 0\r\n\r\n"
                writer.write(f"HTTP/1.1 {status}\r\n{more}".encode())
                return await writer.drain()
        writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\n\r\nAccepted")
        await writer.drain()
        if number is None:
            return
        stream = self.streams[mode]
        text = headers.get("authorization", "") if mode == "repeats" else "done"
        result = INITIAL.get(method, {"content": [{"type": "text", "text": text}]})
        if method == "tools/call" and mode in ("huge", "many"):
            result["content"] = [{}] * 300_000 if mode == "many" else "x" * 50_000_000
        if method == "tools/call" and mode == "closes":
            return stream.close()
        answer = json.dumps({"jsonrpc": "2.0", "id": number, "result": result})
        data, self.written = f"event: message\ndata: {answer}\n\n".encode(), 0
        for start in range(0, len(data), 100_000):
            stream.write(data[start : start + 100_000])
            await stream.drain()
            self.written += 100_000


@pytest.fixture(scope="module")
def raw():
    server = RawServer()
    yield server
    server.close()


def spec(raw, mode, **more):
    url = f"http://127.0.0.1:{raw.port}/sse/{mode}"
    return ServerSpec("raw", url=url, sse=True, **{"timeout": 3.0, "start_timeout": 20.0, **more})


def call(spec):
    "Fault and text of one call in a session of its own, and whether the session lived on."

    async def ask():
        async with Session(spec) as session:
            result = await session.call("do", {})
            return result.fault, result.content, session.alive

    return run_sync(ask)


@pytest.mark.parametrize(
    ("mode", "reason"),
    {
        "missing": "404",
        "page": "text/html",
        "away": "307",
        "elsewhere": "the server names an address for messages at another origin",
        "ended": "ended the stream of its answers",
        "refused": "a message was answered with status 401",
    }.items(),
)
def test_what_cannot_be_opened_is_refused_at_once(raw, mode, reason):
    began = time.monotonic()
    with pytest.raises(SessionError, match=reason) as refused:
        call(spec(raw, mode))
    assert refused.value.fault == "transport" and time.monotonic() - began < 15
    assert live_sessions() == 0


def test_a_server_that_says_nothing_is_given_up():
    raw = RawServer()
    with pytest.raises(SessionError, match="no answer within 1 s"):
        call(spec(raw, "silent", start_timeout=1.0))
    raw.close()


@pytest.mark.parametrize("mode", ["well", "moved"])
def test_a_redirect_within_the_origin_is_followed(raw, mode):
    assert call(spec(raw, mode)) == (None, "done", True)


@pytest.mark.parametrize(
    ("mode", "fault", "reason"),
    [
        ("lost", "transport", "status 404"),
        ("redirected", "transport", "status 307"),
        ("stuck", "transport", "did not take a message in time"),
        ("busy", "rate_limit", "refused 3 times with status 429"),
        ("closes", "transport", "ended the stream"),
        ("huge", "too_large", "beyond the limits"),
        ("many", "too_large", "beyond the limits"),
    ],
)
def test_a_call_ends_with_a_fault_that_says_why(raw, mode, fault, reason):
    began, limit = time.monotonic(), 3.0 if mode == "stuck" else 30.0  # a busy machine takes its time
    found = call(spec(raw, mode, timeout=limit))
    assert found[0] == fault and reason in found[1], found
    assert time.monotonic() - began < limit + 15 and live_sessions() == 0
    assert mode != "huge" or raw.written < 20_000_000


def test_a_refused_message_is_sent_again(raw):
    raw.refused = 0
    assert (call(spec(raw, "once")), raw.refused) == ((None, "done", True), 1)


def test_a_secret_is_redacted(raw):
    found = call(spec(raw, "repeats", headers={"Authorization": f"Bearer {KEY}"}))
    assert found == (None, "bearer [redacted]", True)


def test_episodes_of_a_real_server_have_sessions_of_their_own():
    "The SDK's server; its sessions keep what they were told, and one that has ended is replaced."

    @contextlib.asynccontextmanager
    async def notes(server):
        yield []

    server = MCPServer("notes", lifespan=notes, log_level="ERROR")

    @server.tool()
    def put(text: str, ctx: Context) -> str:
        ctx.request_context.lifespan_context.append(text)
        return " ".join(ctx.request_context.lifespan_context)

    @server.tool()
    def long_text() -> str:
        return "x" * 3_000_000

    async def episodes(specs):
        async with Pool(specs) as pool:
            async with await pool.lease(["notes"]) as one, await pool.lease(["notes"]) as two:
                texts = [(await lease.call("notes", "put", {"text": "a"})).content for lease in (one, two, one)]
                large = await one.call("notes", "long_text", {})
            async with await pool.lease(["notes"]) as later:
                return texts, large.fault, (await later.call("notes", "put", {"text": "b"})).content

    async def main():
        site = uvicorn.Server(uvicorn.Config(server.sse_app(), port=0, log_level="error", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(site.serve())
        while not site.started:
            await anyio.sleep(0.01)
        port = site.servers[0].sockets[0].getsockname()[1]
        found = await episodes({"notes": ServerSpec("notes", url=f"http://127.0.0.1:{port}/sse", sse=True)})
        site.should_exit = True
        await serving
        return found

    assert asyncio.run(main()) == (["a", "a", "a a"], "too_large", "b")
    assert live_sessions() == 0
