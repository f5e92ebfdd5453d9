"verifiers' own loader and rollout, with the tasks of this project; tests/test_verifiers.py runs this."

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beyond import ENVIRONMENT, SHOP, chat_endpoint, chosen_tasks, differing, own, rollouts, verifiers

from mcp_grpo.interop.verifiers import opened
from mcp_grpo.rollout.messages import calls_as_messages
from mcp_grpo.env.action import Call


def says(answer: str) -> dict:
    return {"role": "assistant", "content": f"<answer>{answer}</answer>"}


def shopper(asked: dict) -> dict:
    "A model that asks for the price of what the question names, and then answers 12."
    if asked["messages"][-1]["role"] == "tool":
        return says("12")
    assert asked["tools"][0]["function"]["parameters"]["required"] == ["item"]
    item = asked["messages"][-1]["content"].split()[-1].strip("?")
    return {"role": "assistant", "content": None, "tool_calls": calls_as_messages([Call("price", {"item": item})], 0)}


@pytest.fixture
def shop(tmp_path) -> dict:
    "A taskset with two questions, at a server whose process dies at the second."
    (tmp_path / "shop.py").write_text(SHOP)
    entry = {"command": sys.executable, "args": [str(tmp_path / "shop.py")]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"shop": entry}}))
    rows = [
        {"question": f"What is the price of {item}?", "answer": "12", "servers": ["shop"]} for item in ("pen", "ink")
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    return {"file": str(tmp_path / "tasks.json"), "servers": str(tmp_path / "servers.json")}


def test_results_and_rewards_are_those_of_an_episode():
    tasks = chosen_tasks(12)
    assert not differing(own(tasks), verifiers(tasks))


def test_a_fault_is_an_error_and_not_a_reward(shop):
    with chat_endpoint(shopper) as url:
        pen, ink = rollouts(url, ["model"], taskset=shop)
    assert (pen.ok, pen.reward, pen.metrics["success"], pen.errors) == (True, 1.0, 1.0, [])
    assert [message.content for message in pen.tool_messages] == ["12"]
    assert not ink.ok and ink.last_error.type == "ToolsetError" and "crash: shop.price" in ink.last_error.message
    assert ink.info["episode"]["aborted"] and not ink.rewards and not ink.metrics
    assert opened(shop["file"], shop["servers"])[0].stats()["leases"] == 0


def test_a_failing_endpoint_is_an_error_and_not_a_reward(shop):
    with chat_endpoint(lambda asked: 400) as url:
        traces = rollouts(url, ["model"], taskset=shop)
    assert {(trace.ok, trace.last_error.type, len(trace.rewards)) for trace in traces} == {(False, "ProviderError", 0)}
    assert opened(shop["file"], shop["servers"])[0].stats()["leases"] == 0


def test_limits_of_the_trainer_end_an_episode_that_is_scored(shop):
    def slow(asked: dict) -> dict:
        time.sleep(3 if asked["messages"][-1]["role"] == "tool" else 0)
        return shopper(asked)

    for reply, limit in ((shopper, {"max_turns": 1}), (slow, {"timeout": {"rollout": 1.5}})):
        with chat_endpoint(reply) as url:
            [pen, _] = rollouts(url, ["model"], taskset=shop, agent=limit)
        assert pen.ok and pen.stop_condition, (pen.errors, limit)
        assert pen.info["episode"] == {"end": "truncated", "success": False, "aborted": False, "reason": ""}
        assert pen.rewards["episode_reward"].score == pen.reward < 1
        assert opened(shop["file"], shop["servers"])[0].stats()["leases"] == 0


def test_its_command_evaluates_a_module_of_two_lines(shop, tmp_path):
    (tmp_path / "my_tasks.py").write_text(ENVIRONMENT)
    program = "from verifiers.v1.cli.eval.main import main; main()"
    with chat_endpoint(lambda asked: shopper(asked)) as url:
        settings = {"--env.taskset.file": shop["file"], "--env.taskset.servers": shop["servers"]}
        settings |= {"-m": "model", "--client.base-url": url, "--client.api-key-var": "NO_KEY", "-n": "1"}
        settings |= {"--env.taskset.settings": '["servers.world_seed=1"]'}
        words = [word for pair in settings.items() for word in pair]
        done = subprocess.run(
            [sys.executable, "-c", program, "my_tasks", *words, "--no-rich"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    [kept] = Path(tmp_path).glob("outputs/**/*.jsonl")
    [episode] = map(json.loads, kept.read_text().splitlines())
    assert episode["ok"] and episode["traces"][0]["rewards"]["episode_reward"]["score"] == 1.0
