"""Collections of episodes whose tokens are known in advance, over servers that take their time, and the same tokens
through TRL's trainer.

The packaged model samples episodes once. Every contender then plays these episodes: it computes what it would compute,
draws a token, and goes on with the recorded one. So all of them compute the same tokens, whatever the order in which
they get to them.
"""

import json, sys, time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from transformers import LogitsProcessor

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec, embedded_specs
from mcp_grpo.config import asset, load_config
from mcp_grpo.model.policy import Plan, Policy, open_policy
from mcp_grpo.rollout import hf
from mcp_grpo.rollout.chat import Chat
from mcp_grpo.rollout.collect import collect_sync
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.task import Task, read_tasks
from mcp_grpo.train.trainer import draw_tasks

sys.path.append(str(Path(__file__).parent / "servers"))
import slow

SERVERS = ["polygon", "fmp", "slack"]
SAMPLING = Sampling(1.0, 72)


def slow_specs(seconds: float, transport: str = "memory") -> dict[str, ServerSpec]:
    "The embedded servers with tools that take `seconds` longer."
    if not seconds:
        return embedded_specs(SERVERS, transport)
    if transport == "memory":
        return {
            name: spec.model_copy(update={"server": slow.slow_server, "options": {"name": name, "seconds": seconds}})
            for name, spec in embedded_specs(SERVERS).items()
        }
    return {
        name: spec.model_copy(update={"args": [slow.__file__, name, str(seconds)]})
        for name, spec in embedded_specs(SERVERS, "stdio").items()
    }


def some_tasks(n: int, seed: int = 0) -> list[Task]:
    "Tasks as a step of the quick-start draws them."
    return draw_tasks(read_tasks(asset("tasks/train.json")), n, {}, seed, 0)


@dataclass
class Recorded:
    "Episodes to be played again."

    policy: Policy
    tasks: list[Task]
    groups: list[list[Trajectory]]  # for each task; every turn ended by itself

    @property
    def samples(self) -> int:
        return len(self.groups[0])

    @property
    def episodes(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group]

    @cached_property
    def chat(self) -> Chat:
        return Chat(self.policy.tokenizer)

    def turns(self, t: Trajectory) -> list[list[int]]:
        "What the policy says, turn by turn."
        return [t.ids[span.start : span.end] for span in t.turns if span.role == "policy"]

    def only(self, t: Trajectory) -> "Recorded":
        "One episode alone."
        task = next(task for task in self.tasks if task.task_id == t.task_id)
        return Recorded(self.policy, [task], [[t]])


@lru_cache(None)
def record(n_tasks: int, samples: int, seed: int = 0) -> Recorded:
    """Let the packaged model sample `samples` episodes of each task; episodes with a turn that was cut off are sampled
    again."""
    policy = open_policy(load_config("cpu", "model.device=cpu"), Plan("cpu", "float32"))
    tasks, groups = some_tasks(n_tasks, seed), []
    with Pool(embedded_specs(SERVERS)) as pool:
        found = collect_sync(
            tasks, hf.HFEngine(policy.model), pool, Chat(policy.tokenizer), SAMPLING, samples=2 * samples, seed=seed
        )
    for group in found:
        whole = [t for t in group if t.outcome.end == "answer"] or [t for t in group if t.turns[-1].finish == "stop"]
        groups.append((whole * samples)[:samples])
    return Recorded(policy, tasks, groups)


class Scripted:
    "Inside, the hf engine draws its tokens as always, and then takes those of the recorded episodes."

    def __init__(self, recorded: Recorded):
        self.turns = {(t.task_id, i): recorded.turns(t) for group in recorded.groups for i, t in enumerate(group)}

    def noise(self, key, n):
        turns = self.turns[key[2], key[3]]
        said = turns[key[4]] if key[4] < len(turns) else []
        return np.array((said + [0] * n)[:n], np.float64)

    def sample(self, logits, temperature, wanted, some_greedy=True):
        _, logprobs = self.kept[1](logits, temperature, torch.full_like(wanted, 0.5), some_greedy)
        return wanted.long(), logprobs

    def __enter__(self):
        self.kept = hf.noise, hf.sample
        hf.noise, hf.sample = self.noise, self.sample

    def __exit__(self, *error):
        hf.noise, hf.sample = self.kept


def warm_engine(recorded: Recorded, deterministic: bool = False) -> hf.HFEngine:
    "An engine that has played the episodes once, as in every step of a run but the first; its cache has its size."
    engine = hf.HFEngine(recorded.policy.model, deterministic=deterministic)
    play(recorded, slow_specs(0), engine)
    return engine


def play(
    recorded: Recorded, specs: dict[str, ServerSpec], engine: hf.HFEngine, warm: bool = True
) -> tuple[float, list[list[Trajectory]]]:
    "Play the recorded episodes with our own collection; its seconds, and the episodes."
    with Pool(specs) as pool, Scripted(recorded):
        if warm:  # servers and sessions are there
            first = recorded.only(recorded.episodes[0])
            with Scripted(first):
                collect_sync(first.tasks, engine, pool, recorded.chat, SAMPLING, run="warm")
        start = time.perf_counter()
        groups = collect_sync(recorded.tasks, engine, pool, recorded.chat, SAMPLING, samples=recorded.samples)
        return time.perf_counter() - start, groups


class Script(LogitsProcessor):
    "Makes `generate` say the recorded turns: a row is recognised by the text before its turn."

    def __init__(self, recorded: Recorded, end_id: int):
        self.left, self.unknown, self.end_id = defaultdict(list), 0, end_id
        self.text = recorded.policy.tokenizer.decode
        for t in recorded.episodes:
            for span in t.turns:
                if span.role == "policy":
                    self.left[self.text(t.ids[: span.start])].append(t.ids[span.start : span.end])
        self.start, self.rows = 0, []

    def begin(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        "Look up the turns of a new batch."
        self.start, self.rows = ids.shape[1], []
        for row, seen in zip(ids.tolist(), mask.tolist()):
            known = self.left.get(self.text([id for id, m in zip(row, seen) if m]))
            self.unknown += not known
            self.rows.append(known.pop(0) if known else [])

    @contextmanager
    def spoken_by(self, model):
        "Inside, `generate` of a model says the recorded turns."
        generate = model.generate

        def scripted(**given):
            self.begin(given["input_ids"], given["attention_mask"])
            return generate(**given, logits_processor=[self])

        model.generate = scripted
        try:
            yield
        finally:
            model.generate = generate

    def __call__(self, ids, scores):
        at = ids.shape[1] - self.start
        wanted = torch.tensor([row[at] if at < len(row) else self.end_id for row in self.rows])[:, None]
        return torch.full_like(scores, -1e9).scatter(1, wanted, scores.gather(1, wanted))


class Played(Exception):
    "TRL's collection is done; what follows it is not measured."


@dataclass
class TRL:
    "TRL's trainer with an environment whose tools take `seconds` and answer from what was recorded."

    recorded: Recorded
    seconds: float
    folder: str
    settings: dict = field(default_factory=dict)  # of `GRPOConfig`
    trainer_settings: dict = field(default_factory=dict)  # of `GRPOTrainer`, such as an adapter
    sampled: int = field(default=0)  # tokens of the last collection
    unknown: int = field(default=0)  # turns of the last collection for which there was no recorded one

    def environment(self) -> type:
        "An environment class with a method for every tool that the episodes call."
        answers, names, seconds = defaultdict(dict), set(), self.seconds
        for t in self.recorded.episodes:
            for turn, ids in enumerate(self.recorded.turns(t)):
                calls = self.recorded.chat.parse(ids).calls
                for call, event in zip(calls, [event for event in t.outcome.events if event.turn == turn]):
                    names.add(call.name)
                    answers[t.task_id].setdefault(
                        (call.name, json.dumps(call.arguments, sort_keys=True)), event.content
                    )

        def tool(name):
            def call(self, **given: str) -> str:
                """Call the tool.

                Args:
                    given: its arguments
                """
                time.sleep(seconds)
                return answers[self.task_id].get((name, json.dumps(given, sort_keys=True)), "unknown")

            call.__name__ = name
            return call

        def reset(self, task_id, **row):
            self.task_id = task_id

        def get_reward(self) -> float:
            return 0.0

        return type("Recording", (), {"reset": reset, "get_reward": get_reward} | {name: tool(name) for name in names})

    def __post_init__(self):
        import os

        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
        import copy
        import trl
        from datasets import Dataset
        from trl.chat_template_utils import qwen3_template

        tokenizer = copy.deepcopy(self.recorded.policy.tokenizer)
        tokenizer.response_template = qwen3_template
        shown = tokenizer.chat_template  # without the tools, which the recorded prompts list themselves
        tokenizer.chat_template = "{%- set tools = none %}" + shown
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        chat = self.recorded.chat
        self.rows = [
            {"prompt": chat.messages(task), "task_id": task.task_id}
            for task in self.recorded.tasks
            for _ in range(self.recorded.samples)
        ]
        args = trl.GRPOConfig(
            **{
                "output_dir": self.folder,
                "per_device_train_batch_size": len(self.rows),
                "num_generations": max(self.recorded.samples, 2),
                "max_completion_length": 512,
                "temperature": 1.0,
                "report_to": [],
                "use_cpu": True,
                "bf16": False,
                "gradient_checkpointing": False,
            }
            | self.settings
        )
        self.trainer = trl.GRPOTrainer(
            model=copy.deepcopy(self.recorded.policy.model),
            args=args,
            train_dataset=Dataset.from_list(self.rows[:: self.recorded.samples]),  # the trainer repeats each
            processing_class=tokenizer,
            environment_factory=self.environment(),
            **self.trainer_settings,
        )
        self.trainer.model.train()
        self.trainer.current_gradient_accumulation_steps = 1
        self.end_id = chat.end_id

    def play(self) -> float:
        "One collection; its seconds."
        script, trainer = Script(self.recorded, self.end_id), self.trainer
        collect, seconds = trainer._generate, []

        def timed(prompts):
            start = time.perf_counter()
            found = collect(prompts)
            seconds.append(time.perf_counter() - start)
            self.sampled = (
                sum(map(sum, found[2]))
                if isinstance(found[2], list) and found[2] and isinstance(found[2][0], list)
                else 0
            )
            raise Played

        trainer._generate = timed
        try:
            with script.spoken_by(trainer.model):
                trainer._generate_and_score_completions([dict(row) for row in self.rows])
        except Played:
            pass
        finally:
            trainer._generate = collect
        self.unknown = script.unknown
        return seconds[0]
