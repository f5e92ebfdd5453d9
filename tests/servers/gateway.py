"""Serves a stdio server's tools in another era of MCP or over another transport:
`PYTHON gateway.py OPTIONS -- COMMAND`.

With a PYTHON that has mcp 1 the gateway is an old server: it shakes hands, and knows `server/discover` no more than
that SDK does. With mcp 2 it is a new one: it refuses the handshake. `--over` is stdio, http or sse (mcp 1 only); over
HTTP the first line it prints is its address. Each session has a COMMAND of its own, in the new era each value of the
header that `--header` names; without it, one COMMAND serves all, as does `--stateless` in the old era. `{workdir}` in
COMMAND is a folder of its own, a copy of `--template`, which clients know as /workdir.

`--pass` needs no SDK: COMMAND speaks both eras itself, and only its handshake is refused."""

import argparse, asyncio, json, os, shutil, signal, socket, subprocess, sys, tempfile
from contextlib import asynccontextmanager, AsyncExitStack

NEWEST = "2026-07-28"
REFUSAL = {"code": -32022, "message": "no such version", "data": {"supported": [NEWEST], "requested": "2025-11-25"}}


class Backend:
    "The process of a COMMAND, reached by plain JSON-RPC with one call at a time."

    def __init__(self, command, template=""):
        self.command, self.template, self.last, self.lock = command, template, 0, asyncio.Lock()

    async def __aenter__(self):
        self.folder = tempfile.mkdtemp(prefix="gateway-")
        if self.template:
            shutil.copytree(self.template, self.folder, dirs_exist_ok=True)
        words = [word.replace("{workdir}", self.folder) for word in self.command]
        environ = {name: value.replace("{workdir}", self.folder) for name, value in os.environ.items()}
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, env=environ, cwd=self.folder, limit=2**26
        )
        about = {"name": "gateway", "version": "0"}
        begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
        self.about = await self.ask("initialize", begin)
        self.say({"method": "notifications/initialized"})
        return self

    async def __aexit__(self, *error):
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 2)
        except asyncio.TimeoutError:
            self.process.kill()
            await self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def say(self, message):
        text = json.dumps({"jsonrpc": "2.0", **message}).replace("/workdir", self.folder)
        self.process.stdin.write(text.encode() + b"\n")

    async def ask(self, method, params):
        "The result of a request. Raises `LookupError` with the server's error, `EOFError` where the server has ended."
        async with self.lock:
            self.last += 1
            self.say({"id": self.last, "method": method, "params": params})
            while line := await self.process.stdout.readline():
                message = json.loads(line.decode().replace(self.folder, "/workdir"))
                if message.get("id") == self.last and "method" not in message:
                    if "error" in message:
                        raise LookupError(message["error"])
                    return message["result"]
        raise EOFError("the server has ended")


class Backends:
    "A backend for each key, started when it is first asked for."

    def __init__(self, given):
        self.given, self.found, self.stack, self.lock = given, {}, AsyncExitStack(), asyncio.Lock()

    async def of(self, key):
        async with self.lock:
            if key not in self.found:
                backend = Backend(self.given.command, self.given.template)
                self.found[key] = await self.stack.enter_async_context(backend)
            return self.found[key]


async def listen(app, place="mcp"):
    "Serve an ASGI app on a free port, and print its address."
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}/{place}", flush=True)
        config = uvicorn.Config(app, interface="asgi3", log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


async def serve_old(given):
    "With mcp 1."
    import mcp.types as types
    from mcp.server.lowlevel import Server
    from mcp.server.sse import SseServerTransport
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    common = Backends(given)

    @asynccontextmanager
    async def own(server):
        if given.stateless:  # a server that remembers, and cannot tell its clients apart
            yield await common.of("")
        else:
            async with Backend(given.command, given.template) as backend:
                yield backend

    server = Server("gateway", lifespan=own)

    @server.list_tools()
    async def listed():
        found = await server.request_context.lifespan_context.ask("tools/list", {})
        return [types.Tool.model_validate(tool) for tool in found["tools"]]

    @server.call_tool(validate_input=False)
    async def called(name, arguments):
        asked = {"name": name, "arguments": arguments}
        return types.CallToolResult.model_validate(
            await server.request_context.lifespan_context.ask("tools/call", asked)
        )

    def run(streams):
        return server.run(*streams, server.create_initialization_options())

    if given.over == "stdio":
        async with stdio_server() as streams:
            await run(streams)
    elif given.over == "http":
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=given.stateless)
        async with common.stack, manager.run():
            await listen(manager.handle_request)
    else:
        transport = SseServerTransport("/messages/")

        async def app(scope, receive, send):
            if scope["method"] == "GET":
                async with transport.connect_sse(scope, receive, send) as streams:
                    await run(streams)
            else:
                await transport.handle_post_message(scope, receive, send)

        await listen(app, "sse")


def without_handshake(app):
    "An ASGI app that refuses `initialize`."

    async def refuse(scope, receive, send):
        if scope["method"] != "POST":
            return await app(scope, receive, send)
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        asked, again = json.loads(body), [{"type": "http.request", "body": body, "more_body": False}]

        async def replay():
            return again.pop() if again else await receive()

        if asked.get("method") != "initialize":
            return await app(scope, replay, send)
        answer = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": REFUSAL}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return refuse


async def serve_new(given):
    "With mcp 2."
    import anyio
    import mcp_types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.shared.exceptions import MCPError
    from mcp.shared.message import SessionMessage

    backends = Backends(given)

    async def ask(ctx, method, params):
        key = ctx.request.headers.get(given.header, "") if given.header and ctx.request else ""
        try:
            return await (await backends.of(key)).ask(method, params)
        except LookupError as error:
            raise MCPError(**error.args[0]) from None

    async def listed(ctx, params):
        return mcp_types.ListToolsResult.model_validate(await ask(ctx, "tools/list", {}))

    async def called(ctx, params):
        asked = {"name": params.name, "arguments": params.arguments or {}}
        return mcp_types.CallToolResult.model_validate(await ask(ctx, "tools/call", asked))

    server = Server("gateway", on_list_tools=listed, on_call_tool=called)
    async with backends.stack:
        if given.over == "stdio":
            async with stdio_server() as (theirs, ours), anyio.create_task_group() as group:
                send, received = anyio.create_memory_object_stream(16)

                async def filtered():
                    async with send:
                        async for item in theirs:
                            message = getattr(item, "message", None)
                            if getattr(message, "method", "") == "initialize":
                                error = mcp_types.ErrorData(**REFUSAL)
                                answer = mcp_types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                                await ours.send(SessionMessage(answer))
                            else:
                                await send.send(item)

                group.start_soon(filtered)
                await server.run(received, ours, server.create_initialization_options())
        else:
            manager = StreamableHTTPSessionManager(server, json_response=True)
            async with manager.run():
                await listen(without_handshake(manager.handle_request))


def pass_on(given):
    "Refuse the handshake of a server that speaks both eras over stdio; everything else passes."
    server = subprocess.Popen(given.command, stdin=subprocess.PIPE)
    try:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if message.get("method") == "initialize":
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": REFUSAL}), flush=True)
            else:
                server.stdin.write(line)
                server.stdin.flush()
    except BrokenPipeError:
        pass
    finally:
        server.stdin.close()
        sys.exit(server.wait())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--over", choices=["stdio", "http", "sse"], default="stdio")
    parser.add_argument("--header", default="")
    parser.add_argument("--template", default="")
    parser.add_argument("--stateless", action="store_true")
    parser.add_argument("--pass", action="store_true", dest="passing")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    if given.passing:
        return pass_on(given)
    from importlib.metadata import version

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    asyncio.run((serve_old if version("mcp").startswith("1.") else serve_new)(given))


if __name__ == "__main__":
    main()
