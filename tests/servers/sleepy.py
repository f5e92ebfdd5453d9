"A server made with the official SDK: its tool takes its time, and remembers what this session told it."

from contextlib import asynccontextmanager

import anyio
from mcp.server.mcpserver import Context, MCPServer


@asynccontextmanager
async def nothing_said(server):
    yield []


def make_server() -> MCPServer:
    "What was said is kept a session, so the server also serves many episodes from memory."
    server = MCPServer("sleepy", lifespan=nothing_said, log_level="ERROR")

    @server.tool(structured_output=False)
    async def wait(seconds: float, ctx: Context, note: str = "") -> str:
        "Everything said so far, this note included, after a while."
        said = ctx.request_context.lifespan_context
        if note:
            said.append(note)
        await anyio.sleep(seconds)
        return " ".join(said)

    @server.tool(structured_output=False)
    async def recall(ctx: Context) -> str:
        "Everything said so far."
        return " ".join(ctx.request_context.lifespan_context)

    return server


if __name__ == "__main__":
    make_server().run("stdio")
