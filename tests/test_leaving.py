"""When the process that follows the workers of a run stops, they save the finished steps. The workers are played by a
program that speaks their protocol: it sends steps, and saves when it is told to make no further one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from mcp_grpo.config import load_config
from mcp_grpo.model.policy import Plan, Policy, tiny_qwen3
from mcp_grpo.train.launch import Launch

WORKER = """
import sys, threading, os
from multiprocessing.connection import Client
from mcp_grpo.train.trainer import StepResult
address, key, saved = sys.argv[1:]
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()  # the lifeline
follower = Client(address, authkey=bytes.fromhex(key))
for step in range(1, 6):
    follower.send((step, {}, []))
    follower.send(StepResult(step, {}, [], {}))
    if not follower.recv():
        break
open(saved, "w").write(str(step))
"""


class Sampler:
    async def release_memory(self):
        pass

    async def update(self, weights):
        pass


class Played(Launch):
    def start(self, address, key):
        command = [sys.executable, "-c", WORKER, address, key, self.folder / "saved"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def follow(folder, handle, on_rollout=None):
    "Follow the steps of a run; return the step that the workers saved."
    policy = Policy(tiny_qwen3(vocab=40, hidden=32, layers=1, heads=4, kv=2, head_dim=8, mlp=48))
    run = Played(
        load_config("cpu", f"train.steps=5,parallel.deepspeed={ROOT}/experiments/configs/deepspeed_zero3.json"),
        Plan("cpu", "float32"),
        policy,
        Sampler(),
        [],
        folder,
    )
    run.on_rollout = on_rollout
    for step in run.fit():
        if handle(step.step):
            break
    return int((Path(folder) / "saved").read_text())


def interrupt(*played):
    if played[0] == 3:
        signal.raise_signal(signal.SIGINT)


def test_a_run_that_nobody_leaves_makes_all_steps(tmp_path):
    assert follow(tmp_path, lambda step: False) == 5


def test_a_loop_that_is_left_keeps_its_last_step(tmp_path):
    assert follow(tmp_path, lambda step: step == 3) == 3


@pytest.mark.parametrize("where", ["handle", "on_rollout"])
def test_an_interrupt_while_a_step_is_handled_keeps_it(where, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        follow(tmp_path, **{"handle": lambda step: False} | {where: interrupt})
    assert (tmp_path / "saved").read_text() == "3"
