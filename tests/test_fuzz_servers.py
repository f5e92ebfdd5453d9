"""Whatever a model may write as arguments: an answer or a clear error, never a crash, never long. FUZZ_CASES=500 tries
more."""

import os, sys, time

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
from fuzz import fuzz_server
from mcp.server.mcpserver import MCPServer

from mcp_grpo.client.spec import EMBEDDED
from mcp_grpo.servers.world import reply

CASES = int(os.environ.get("FUZZ_CASES", 50))


@pytest.mark.parametrize("name", EMBEDDED)
def test_every_tool_answers(name):
    found = fuzz_server(name, CASES)
    assert not [f for f in found if f.complaints], [f.complaints for f in found if f.complaints]
    assert all(f.cases >= CASES for f in found) and not any(f.cases == f.errors for f in found), found


def test_bad_tools_are_found():
    server = MCPServer("bad", log_level="CRITICAL")

    @server.tool(structured_output=False)
    async def crashes(n: int):
        return reply({"eighth": 1 / (n // 8)})

    @server.tool(structured_output=False)
    async def takes_long(n: int):
        end = time.process_time() + 0.15
        while n > 20 and time.process_time() < end:
            pass
        return reply({})

    @server.tool(structured_output=False)
    async def babbles(n: int):
        return "nothing"

    crashing, slow, babbling = (found.complaints[0] for found in fuzz_server(server, 200))
    assert "no clear error" in crashing and "'n': 0" in crashing and "s of CPU" in slow and babbling
