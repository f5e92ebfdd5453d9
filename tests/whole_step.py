"""One whole step of GRPO with a real model: 64 episodes at a help desk of five tools, collected and learnt from, here
and by TRL.

The episodes are written by a script, three turns each: a call that another task needs, the task's own call, the answer.
No two episodes of a task are equal. Both sides compute every token, draw one, and go on with the written one, as in
`rollouts.py`. Here the tools are called at the real server; in TRL they answer from what it said. Both use the packaged
model's chat template, because TRL refuses a template that cannot render calls, such as SmolLM2's.
"""

import random, sys, tempfile, time
from dataclasses import replace
from pathlib import Path

import torch
from transformers import AutoTokenizer

from mcp_grpo.client.pool import Pool
from mcp_grpo.config import Config, asset, load_config
from mcp_grpo.env.scripted import oracle_turns
from mcp_grpo.model.policy import open_policy
from mcp_grpo.plan import plan_run
from mcp_grpo.rollout import hf
from mcp_grpo.rollout.chat import Chat
from mcp_grpo.rollout.collect import collect_sync
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.messages import Scribe
from mcp_grpo.task import Task
from mcp_grpo.tasks.explore import explore_sync
from mcp_grpo.train.learner import Learner

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "data/written")]
import servers_more
from rollouts import TRL, Recorded, Script, Scripted

SAMPLES, ROOM = 8, 4096


def some_tasks(pool: Pool, n: int) -> list[Task]:
    "Tasks of the help desk that need one call and have an answer."
    found = explore_sync(pool, tasks=200, seconds=60, seeds={"name": ["Bo Kral"]})
    whole = [task for task in found.train if task.extra["calls"] == 1 and not task.state_check]
    return random.Random(0).sample(whole, min(n, len(whole)))


def written(tasks: list[Task], others: list[Task]) -> dict[str, list[list]]:
    "The turns of every sample of each task; it begins with a call that one of the other tasks needs."
    firsts = [oracle_turns(task)[0] for task in others]
    return {task.task_id: [[first, *oracle_turns(task)] for first in firsts] for task in tasks}


class Step:
    "Both sides of the comparison, with the same model, episodes and lengths."

    def __init__(self, model: str, n: int, overrides: str = ""):
        settings = f"model.name={model},rollout.max_tokens={ROOM},train.kl.weight=0,train.entropy=0,"
        self.cfg: Config = load_config("lora", settings + overrides)  # TRL's default has neither term
        helpdesk = servers_more.specs()["helpdesk"]
        self.specs = {"helpdesk": helpdesk.model_copy(update={"processes": n * SAMPLES})}  # all episodes at a time
        self.policy = open_policy(self.cfg, plan_run(self.cfg))
        self.policy.tokenizer.chat_template = AutoTokenizer.from_pretrained(asset("tiny")).chat_template
        self.chat = Chat(self.policy.tokenizer, tools_as="compact")
        self.sampling = Sampling(1.0, 64, stop_ids=self.chat.end_ids)
        with Pool(self.specs) as pool:
            drawn = some_tasks(pool, n + SAMPLES)
            tasks, others = drawn[:n], drawn[n:]
            scribe = Scribe(written(tasks, others), self.chat)
            groups = collect_sync(tasks, scribe, pool, self.chat, self.sampling, samples=SAMPLES, max_tokens=ROOM)
        self.recorded = Recorded(self.policy, tasks, groups)
        self.recorded.chat = self.chat
        texts = {
            tuple(episode.ids[:end]) for episode in self.recorded.episodes for end in range(1, len(episode.ids) + 1)
        }
        self.distinct = len(texts)  # number of tokens after different texts
        self.engine = hf.HFEngine(self.policy.model)
        self.learner = Learner(self.policy, self.cfg.train, max_tokens=ROOM)

    def ours(self) -> dict[str, float]:
        "Seconds of one step by this project, and its tokens."
        with Pool(self.specs) as pool, Scripted(self.recorded):
            first = self.recorded.only(self.recorded.episodes[0])
            with Scripted(first):
                collect_sync(first.tasks, self.engine, pool, self.chat, self.sampling, run="warm", max_tokens=ROOM)
            start = time.perf_counter()
            groups = collect_sync(
                self.recorded.tasks, self.engine, pool, self.chat, self.sampling, samples=SAMPLES, max_tokens=ROOM
            )
            collected = time.perf_counter()
        for place, t in enumerate(t for group in groups for t in group):
            t.outcome = replace(t.outcome, reward=float(place % 2))  # so that every episode is learnt from
        metrics = self.learner.step(groups)
        return {"collect": collected - start, "learn": time.perf_counter() - collected, **metrics}

    def theirs(self) -> dict[str, float]:
        "Seconds of one step by TRL, on a copy of the same model and adapter, in its default settings otherwise."
        from transformers import TrainerCallback

        bfloat16 = next(self.policy.model.parameters()).dtype == torch.bfloat16
        marks = {}

        class Watch(TrainerCallback):
            def on_step_begin(self, *about, **more):
                marks["begun"] = time.perf_counter()

            def on_step_end(self, *about, **more):
                marks["done"] = time.perf_counter()

        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "per_device_train_batch_size": SAMPLES,
                "gradient_accumulation_steps": len(self.recorded.tasks),
                "max_completion_length": ROOM,
                "max_steps": 1,
                "bf16": bfloat16,
                "gradient_checkpointing": True,
                "save_strategy": "no",
                "disable_tqdm": True,
            }
            trl = TRL(self.recorded, 0.0, folder, settings, {"callbacks": [Watch()]})
            script, collect = Script(self.recorded, trl.end_id), trl.trainer._generate

            def timed(prompts):
                start = time.perf_counter()
                found = collect(prompts)
                marks["collected"] = time.perf_counter() - start
                return found

            trl.trainer._generate = timed
            with script.spoken_by(trl.trainer.model):
                trl.trainer.train()
        whole = marks["done"] - marks["begun"]
        return {"collect": marks["collected"], "learn": whole - marks["collected"], "unknown": script.unknown}
