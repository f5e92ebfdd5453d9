"""The same prepared turns in an episode of this project and in the environments of other trainers: results and rewards.

`python tests/beyond.py NAME [TASKS]` prints what one of them gives, as JSON; NAME is a key of PLAYERS, and its package
must be installed."""

import asyncio
import contextlib
import importlib.metadata
import inspect
import json
import re
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import embedded_specs
from mcp_grpo.config import asset
from mcp_grpo.env.action import Action, Call
from mcp_grpo.env.scripted import Replay, oracle_turns, play_all_sync
from mcp_grpo.rollout.messages import calls_as_messages
from mcp_grpo.rollout.turns import render_turn
from mcp_grpo.task import Task, read_tasks

SERVERS = ["polygon", "fmp", "slack"]
AT_ONCE = 8  # concurrent sessions or rollouts
ENVIRONMENT = """from mcp_grpo.interop.verifiers import MCPEnv, MCPHarness, MCPTaskset

__all__ = ["MCPEnv", "MCPHarness", "MCPTaskset"]
"""  # the module that a user of verifiers writes
SHOP = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("shop", log_level="ERROR")
@server.tool()
def price(item: str) -> str:
    if item == "ink":
        os._exit(1)
    return "12"
server.run("stdio")
"""  # a stdio server that dies when asked for the price of ink
Played = tuple[str, str, list[str], float | None]  # script, task id, results, reward


def chosen_tasks(number: int = 100) -> list[Task]:
    "The packaged held-out tasks, and training tasks of all families up to the number."
    tasks, more = read_tasks(asset("tasks/validation.json")), read_tasks(asset("tasks/train.json"))
    if number <= len(tasks):
        return tasks[:: len(tasks) // number][:number]
    missing = number - len(tasks)
    return tasks + more[:: len(more) // missing][:missing]


def scripts_of(task: Task) -> dict[str, list[Action]]:
    "The turns of each script: the oracle, its calls in one turn, a mistaken call first, a wrong answer, no calls."
    turns = oracle_turns(task)
    calls, wrong = [call for turn in turns for call in turn.calls], Action(answer="0.1234")
    together = [Action(calls), turns[-1]] if calls else turns
    mistaken = [Action([Call(call.name, dict.fromkeys(call.arguments, "ZZZZ"))]) for call in calls[:1]]
    scripts = {"oracle": turns, "together": together, "mistaken": mistaken + turns}
    return scripts | {"wrong": [*turns[:-1], wrong], "none": [wrong]}


def prepared(tasks: list[Task]) -> list[tuple[str, Task, list[Action]]]:
    return [(script, task, turns) for task in tasks for script, turns in scripts_of(task).items()]


def as_message(turn: Action, number: int) -> dict:
    "A turn as the message of a chat model."
    if turn.calls:
        return {"role": "assistant", "content": None, "tool_calls": calls_as_messages(turn.calls, number)}
    return {"role": "assistant", "content": f"<answer>{turn.answer}</answer>"}


def own(tasks: list[Task]) -> list[Played]:
    "Episodes of this project."
    found = []
    with Pool(embedded_specs(SERVERS)) as pool:
        for script, task, turns in prepared(tasks):
            [outcome] = play_all_sync(lambda task, turns=turns: Replay(turns), [task], pool)
            found.append((script, task.task_id, [event.content for event in outcome.events], outcome.reward))
    return found


def skyrl(tasks: list[Task]) -> list[Played]:
    "SkyRL's gym class, made as its generator makes it; turns are texts."
    import skyrl_gym

    from mcp_grpo.interop.skyrl import register_env

    register_env()
    found = []
    with Pool(embedded_specs(SERVERS)) as pool:
        for script, task, turns in prepared(tasks):
            row = task.to_row()
            extras = {name: value for name, value in row.items() if name not in ("prompt", "env_class")}
            env = skyrl_gym.make("MCPToolEnv", env_config={"pool": pool}, extras=extras | {"max_turns": 1})
            env.init(row["prompt"])
            steps = [env.step(render_turn(turn)) for turn in turns]
            env.close()
            told = "".join(message["content"] for step in steps for message in step["observations"])
            results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", told, re.S)
            found.append((script, task.task_id, results, steps[-1]["reward"]))
    return found


def trl(tasks: list[Task]) -> list[Played]:
    "TRL's environment, whose methods are called as its trainer calls them, one by one."
    from mcp_grpo.interop.trl import trl_parts

    found = []
    with Pool(embedded_specs(SERVERS)) as pool:
        parts = trl_parts(tasks, pool)
        rows = {row["task_id"]: row for row in parts["train_dataset"]}
        for script, task, turns in prepared(tasks):
            environment, messages = parts["environment_factory"][rows[task.task_id]["environment"]](), []
            environment.reset(task_id=task.task_id)
            for number, turn in enumerate(turns):
                messages.append(as_message(turn, number))
                for call in turn.calls:
                    method = getattr(environment, call.name)
                    names = inspect.signature(method).parameters
                    given = {name if name in names else f"{name}_": value for name, value in call.arguments.items()}
                    messages.append({"role": "tool", "name": call.name, "content": method(**given)})
            [reward] = parts["reward_funcs"]([messages], [environment])
            results = [message["content"] for message in messages if message["role"] == "tool"]
            found.append((script, task.task_id, results, reward))
    return found


@contextlib.contextmanager
def openenv_server(tasks: list[Task], pool: Pool, **more):
    "The address of a running OpenEnv server."
    import uvicorn

    from mcp_grpo.interop.openenv import openenv_app

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(openenv_app(tasks, pool, **more), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def openenv(tasks: list[Task]) -> list[Played]:
    "OpenEnv's client and server, several sessions at once."
    from openenv.core import CallToolAction

    from mcp_grpo.interop.openenv import TaskClient

    def play(share: list[tuple]) -> list[Played]:
        found = []
        with TaskClient(url).sync() as env:
            for script, task, turns in share:
                env.reset(task_id=task.task_id)
                results = []
                for number, turn in enumerate(turns):
                    if len(turn.calls) == 1:
                        call = turn.calls[0]
                        step = env.step(CallToolAction(tool_name=call.name, arguments=call.arguments))
                    else:
                        step = env.turn(**as_message(turn, number))
                    told = step.observation.result
                    results += [told] if isinstance(told, str) else told or []
                found.append((script, task.task_id, results, step.reward if step.done else "not done"))
        return found

    with Pool(embedded_specs(SERVERS)) as pool, openenv_server(tasks, pool) as url:
        episodes = prepared(tasks)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return sum(threads.map(play, [episodes[i::AT_ONCE] for i in range(AT_ONCE)]), [])


@contextlib.contextmanager
def chat_endpoint(reply):
    "The address of a running endpoint; `reply(request)` is the model's message, or the status of a refusal."

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = reply(asked)
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 1)
            told = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"]}
            body = json.dumps(told | {"choices": [choice], "usage": usage}).encode()
            self.send_response(message if isinstance(message, int) else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def rollouts(url: str, models: list[str], **settings) -> list:
    "The traces that verifiers records of its tasks with these models; settings are those of its environment."
    import verifiers.v1 as vf

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_tasks.py").write_text(ENVIRONMENT)
        sys.path.insert(0, folder)
        try:
            taskset = {"id": "my_tasks"} | settings.pop("taskset", {})
            env = vf.load_environment(vf.resolve_env_config({"taskset": taskset} | settings))
            tasks = list(env.taskset)
        finally:
            sys.path.remove(folder)

        async def run() -> list:
            limit = asyncio.Semaphore(AT_ONCE)
            client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
            async with env.serving():
                slots = [
                    env.run_slot(slot, vf.ModelContext(model=model, client=client), limit)
                    for task in tasks
                    for model in models
                    for slot in env.slots(task)
                ]
                return [episode.traces[0] for episode in await asyncio.gather(*slots)]

        return asyncio.run(run())


def verifiers(tasks: list[Task]) -> list[Played]:
    "verifiers' own loader and rollout, with an endpoint that writes the prepared turns; the model is the script."
    from mcp_grpo.task import write_tasks

    turns_of = {(script, task.prompt[-1]["content"]): turns for script, task, turns in prepared(tasks)}
    assert len(turns_of) == len(prepared(tasks)), "two tasks have the same question"

    def reply(asked: dict) -> dict:
        question = next(message["content"] for message in asked["messages"] if message["role"] == "user")
        number = sum(message["role"] == "assistant" for message in asked["messages"])
        return as_message(turns_of[asked["model"], question][number], number)

    with tempfile.TemporaryDirectory() as folder, chat_endpoint(reply) as url:
        file = Path(folder) / "tasks.json"
        write_tasks(tasks, file)
        traces = rollouts(url, list(scripts_of(tasks[0])), taskset={"file": str(file)})
    return [
        (
            trace.agent.config.model,
            trace.task.data.id,
            [message.content for message in trace.tool_messages],
            trace.reward if trace.ok else trace.last_error.message,
        )
        for trace in traces
    ]


PLAYERS = {player.__name__: player for player in (own, skyrl, trl, openenv, verifiers)}
PACKAGES = {"skyrl": "skyrl-gym", "trl": "trl", "openenv": "openenv", "verifiers": "verifiers"}


def differing(one: list[Played], other: list[Played]) -> list[str]:
    "The episodes that differ in their results or rewards, or that only one side has."
    ours, theirs = ({(script, task): rest for script, task, *rest in played} for played in (one, other))
    names = ours.keys() | theirs.keys()
    return sorted(" ".join(name) for name in names if ours.get(name) != theirs.get(name))


if __name__ == "__main__":
    name, number = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 100
    began, processor = time.perf_counter(), time.process_time()
    episodes = PLAYERS[name](chosen_tasks(number))
    spent = {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}
    version = importlib.metadata.version(PACKAGES[name]) if name in PACKAGES else ""
    print(json.dumps({"episodes": episodes, "version": version} | spent))
