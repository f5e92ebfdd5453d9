"OpenEnv's own clients and server, behind a socket, with the tasks of this project; tests/test_openenv.py runs this."

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import httpx
import pytest
from beyond import AT_ONCE, SERVERS, SHOP, chosen_tasks, differing, openenv, openenv_server, own
from openenv.core import CallToolAction, GenericEnvClient, MCPToolClient

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec, embedded_specs
from mcp_grpo.config import ConfigError
from mcp_grpo.env.scripted import oracle_turns
from mcp_grpo.interop.openenv import TaskClient, openenv_app
from mcp_grpo.servers.world import open_world
from mcp_grpo.task import OfferedTool, Task


def call(name: str, **arguments) -> CallToolAction:
    return CallToolAction(tool_name=name, arguments=arguments)


def task_with(*tools: tuple, servers: str) -> Task:
    "A task at one server, with tools given as a name and its arguments."
    offered = [OfferedTool(servers, name, name, name, {one: one for one in given}) for name, *given in tools]
    question, success = [{"role": "user", "content": "Look."}], {"kind": "answer", "values": ["12"]}
    return Task("t1", "lookup", "simple", question, 4, success, [], {}, {}, offered)


def test_results_and_rewards_are_those_of_an_episode():
    tasks = chosen_tasks(24)
    assert not differing(own(tasks), openenv(tasks))


def test_every_client_of_the_package_works():
    [task] = chosen_tasks(1)
    *calls, answer = oracle_turns(task)
    with Pool(embedded_specs(SERVERS)) as pool, openenv_server([task], pool) as url:
        with GenericEnvClient(url).sync() as env:
            start = env.reset(task_id=task.task_id)
            assert start.observation["messages"] == task.prompt and not start.done and start.reward is None
            listed = env.step({"type": "list_tools"}).observation["tools"]
            assert [tool["name"] for tool in listed] == [tool.name for tool in task.tools]
            assert [tool["function"]["name"] for tool in start.observation["tools"]] == [t["name"] for t in listed]
            for turn in calls:
                assert env.step(call(turn.calls[0].name, **turn.calls[0].arguments)).reward == 0
            last = env.step(call("submit_turn", content=answer.answer))
            assert (last.reward, last.done, last.metadata["success"]) == (1.0, True, True)
            assert env.state()["step_count"] == len(calls) + 1
            assert env.step(call("submit_turn", content="1")).reward is None  # after the end
        with MCPToolClient(url).sync() as env:  # MCP over HTTP, with the session of the socket
            env.reset(task_id=task.task_id)
            assert [tool.name for tool in env.list_tools()] == [tool.name for tool in task.tools]
            told = [env.call_tool(turn.calls[0].name, **turn.calls[0].arguments) for turn in calls]
            assert all(one["result"] for one in told)
            assert env.call_tool("submit_turn", content=answer.answer)["reward"] == 1.0
        with TaskClient(url).sync() as env:
            with pytest.raises(RuntimeError, match="call reset before step"):
                env.turn(content="1")
            with pytest.raises(RuntimeError, match="there is no task 'other'"):
                env.reset(task_id="other")
            assert env.reset(seed=3, episode_id="mine").observation.task_id == task.task_id
            assert (env.state().episode_id, env.state().task_id) == ("mine", task.task_id)
            assert pool.stats()["leases"] == 1
        for _ in range(100):  # the server ends the session of a client that has gone
            if not pool.stats()["leases"]:
                break
            httpx.get(f"{url}/health")
        assert pool.stats()["leases"] == 0
        listed = httpx.post(f"{url}/mcp_grpo/tasks", json={"split": "tasks"}).json()["tasks"]
        assert listed == [{"id": task.task_id, "question": task.prompt[-1]["content"]}]
        assert "reset_observation" in httpx.get(f"{url}/schema").json()


def test_a_fault_has_no_reward_and_says_so(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    spec = ServerSpec("shop", command=sys.executable, args=[str(tmp_path / "shop.py")])
    task = task_with(("price", "item"), servers="shop")
    with Pool({"shop": spec}) as pool, openenv_server([task], pool) as url, TaskClient(url).sync() as env:
        env.reset()
        assert env.step(call("price", item="pen")).observation.result == "12"
        dead = env.step(call("price", item="ink"))
        assert (dead.reward, dead.done, dead.metadata["aborted"]) == (None, True, True)
        assert dead.metadata["reason"].startswith("crash: shop.price") and dead.observation.result is None
        assert dead.observation.error.error_type.value == "transport_error"
        assert pool.stats()["leases"] == 0
        env.reset()  # the next episode has a new process
        assert env.step(call("price", item="pen")).observation.result == "12"
        assert env.turn(content="<answer>12</answer>").reward is not None


def test_a_server_that_does_not_start_is_a_fault_of_the_reset():
    spec = ServerSpec("shop", command=sys.executable, args=["-c", "raise SystemExit(3)"])
    task = task_with(("price", "item"), servers="shop")
    with Pool({"shop": spec}) as pool, openenv_server([task], pool) as url, TaskClient(url).sync() as env:
        start = env.reset()
        assert (start.reward, start.done, start.metadata["aborted"]) == (None, True, True)


def test_sessions_at_once_see_only_themselves():
    post = ("slack_post_message", "channel_id", "text")
    task = task_with(post, ("slack_get_channel_history", "channel_id", "limit"), servers="slack")
    barrier, channel = Barrier(AT_ONCE), "#" + open_world(0).channels[0]["name"]

    def session(number: int) -> str:
        with TaskClient(url).sync() as env:
            env.reset()
            barrier.wait(60)
            posted = env.step(call("slack_post_message", channel_id=channel, text=f"mark {number}"))
            assert posted.observation.error is None
            barrier.wait(60)
            return env.step(call("slack_get_channel_history", channel_id=channel)).observation.result

    with Pool(embedded_specs(["slack"])) as pool, openenv_server([task], pool) as url:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            seen = list(threads.map(session, range(AT_ONCE)))
    for number, text in enumerate(seen):
        assert [other for other in range(AT_ONCE) if f"mark {other}" in text] == [number], text


def test_there_are_as_many_sessions_as_the_servers_have_processes(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP)
    spec = ServerSpec("shop", command=sys.executable, args=[str(tmp_path / "shop.py")], processes=1)
    task = task_with(("price", "item"), servers="shop")
    with Pool({"shop": spec}) as pool, openenv_server([task], pool) as url, TaskClient(url).sync() as env:
        env.reset()
        with pytest.raises((RuntimeError, ConnectionError), match="(?i)capacity"), TaskClient(url).sync() as other:
            other.reset()


def test_what_cannot_be_offered_is_refused():
    with Pool(embedded_specs(["slack"])) as pool:
        for name in ("submit_turn", "reset"):
            with pytest.raises(ConfigError, match=f"a tool named {name}"):
                openenv_app([task_with((name,), servers="slack")], pool)
        with pytest.raises(ConfigError, match="offers no tools"):
            openenv_app([replace(task_with(("post",), servers="slack"), tools=[], all_tools_of=["slack"])], pool)
        with pytest.raises(ConfigError, match="at least one task"):
            openenv_app([], pool)
