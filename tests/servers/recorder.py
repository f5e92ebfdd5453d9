"""A program that records calls on a tape and says which were acknowledged, until it is killed.

`killed(folder)` runs it, kills it with -9 in the middle, and compares the tape with what it said.
"""

import asyncio, os, random, signal, subprocess, sys, time
from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcp_grpo.client.pool import Pool, together
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.client.tape import Tape


def make_server() -> MCPServer:
    server = MCPServer("echo", log_level="ERROR")

    @server.tool(structured_output=False)
    async def echo(number: int) -> str:
        return f"{number} " + "x" * (number % 500)

    return server


def stopped(spec: ServerSpec) -> ServerSpec:
    "The same server in memory, which cannot be started."

    def start(**options):
        raise RuntimeError(f"the server '{spec.name}' was to be started")

    return spec.model_copy(update={"server": start})


ECHO = ServerSpec("echo", server=make_server, isolation="shared")


async def record(path: str):
    "Eight calls at a time, for ever."
    with Tape(path, "record") as tape:
        async with Pool({"echo": ECHO}, tape) as pool, await pool.lease(["echo"]) as lease:

            async def numbers(start: int):
                for number in range(start, 1_000_000, 8):
                    result = await lease.call("echo", "echo", {"number": number})
                    if result.content.startswith(f"{number} "):
                        os.write(1, f"{number}\n".encode())

            await together(numbers, range(8))


async def lost(path: Path, acknowledged: list[int]) -> list[int]:
    "The acknowledged calls that the tape does not give back."
    with Tape(path, "replay") as tape:
        async with Pool({"echo": stopped(ECHO)}, tape) as pool, await pool.lease(["echo"]) as lease:

            async def kept(number: int) -> bool:
                try:
                    return (await lease.call("echo", "echo", {"number": number})).content == f"{number} " + "x" * (
                        number % 500
                    )
                except LookupError:
                    return False

            return [number for number in acknowledged if not await kept(number)]


def killed(folder: Path) -> tuple[int, list[int]]:
    "How many calls were acknowledged before the end, and which of them the tape has lost."
    path = folder / f"tape-{random.getrandbits(32):08x}.sqlite"
    program = subprocess.Popen([sys.executable, __file__, str(path)], stdout=subprocess.PIPE)
    try:
        first = program.stdout.readline()
        time.sleep(random.uniform(0, 0.3))
    finally:
        os.kill(program.pid, signal.SIGKILL)
    said = first + program.stdout.read()
    program.wait()
    program.stdout.close()
    acknowledged = [int(line) for line in said.split(b"\n")[:-1]]
    return len(acknowledged), asyncio.run(lost(path, acknowledged))


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
