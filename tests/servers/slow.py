"""An embedded server whose tools take longer: NAME SECONDS."""

import importlib, sys

import anyio


def slow_server(name: str, seconds: float, world_seed: int = 0):
    "The server, with tools that take `seconds` longer."
    server = importlib.import_module(f"mcp_grpo.servers.{name}").make_server(world_seed=world_seed)
    tools = server._tool_manager
    plain = tools.call_tool

    async def call_tool(*given, **named):
        await anyio.sleep(seconds)
        return await plain(*given, **named)

    tools.call_tool = call_tool
    return server


if __name__ == "__main__":
    anyio.run(slow_server(sys.argv[1], float(sys.argv[2])).run_stdio_async)
