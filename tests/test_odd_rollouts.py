"Rollouts that are rare: all tools of a pool in deterministic rounds, episodes that cannot start, calls nobody can make"

import asyncio
import sys

import pytest
from conftest import needs
from mcp.server.mcpserver import MCPServer

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.config import asset, load_config
from mcp_grpo.env import episode as episodes
from mcp_grpo.interop.trl import trl_parts
from mcp_grpo.model.policy import Plan, open_policy
from mcp_grpo.rollout.chat import Chat
from mcp_grpo.rollout.collect import collect
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.hf import HFEngine
from mcp_grpo.task import OfferedTool, Task

SERVER = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("s")


@server.tool()
def find(x: str) -> str:
    "Find x."
    return x


server.run()
"""


def a_task(**fields) -> Task:
    success = {"kind": "answer", "values": ["Paris"]}
    return Task("t", "f", "simple", [{"role": "user", "content": "Where?"}], 2, success, data_source="d", **fields)


@pytest.fixture
def pool():
    server = MCPServer("s")

    @server.tool()
    def find(x: str) -> str:
        "Find x."
        return x

    with Pool({"s": ServerSpec("s", server=server)}) as opened:
        yield opened


def test_a_round_of_tasks_that_want_all_tools_ends_where_servers_have_few_processes(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    spec = ServerSpec(
        "s", command=sys.executable, args=["server.py"], cwd=str(tmp_path), isolation="process", processes=2
    )
    policy = open_policy(load_config(model={"name": str(asset("tiny"))}), Plan("cpu", "float32"))

    async def play():
        engine = HFEngine(policy.model, 16, 256, True)
        async with Pool({"s": spec}) as pool:
            played = collect(
                [a_task(all_tools_of=["*"])],
                engine,
                pool,
                Chat(policy.tokenizer),
                Sampling(1.0, 8),
                samples=4,
                max_tokens=512,
            )
            return await asyncio.wait_for(played, 60)

    [group] = asyncio.run(play())
    assert [trajectory.outcome.reason for trajectory in group] == [""] * 4


def test_an_episode_of_skyrl_that_cannot_start_gives_its_sessions_back(pool, monkeypatch):
    needs("skyrl_gym")
    from mcp_grpo.interop.skyrl import MCPToolEnv

    def refuse(*args, **keywords):
        raise ValueError("a bad row")

    monkeypatch.setattr(episodes, "offer_tools", refuse)
    row = a_task(all_tools_of=["s"]).to_row()
    env = MCPToolEnv({"pool": pool}, row)
    with pytest.raises(ValueError, match="a bad row"):
        env.init(row.pop("prompt"))
    env.close()
    assert not list(pool._leases)


def test_a_call_that_trl_cannot_make_has_no_event(pool):
    needs("datasets")
    task = a_task(tools=[OfferedTool("s", "find", "find", "Find x.", {"x": "x"})])
    kind = next(iter(trl_parts([task], pool)["environment_factory"].values()))
    environment = kind()
    environment.reset("t")
    environment.find(x="1")
    calls = [[{"function": {"name": "find", "arguments": arguments}}] for arguments in ([1], {"x": "1"})]
    environment._number_turns([{"role": "assistant", "tool_calls": made} for made in calls])
    assert [event.turn for event in environment._episode.record.events] == [1]
    environment._finish("")
