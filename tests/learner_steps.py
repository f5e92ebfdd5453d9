"""One optimisation step on given groups, by our learner and by TRL's trainer, each through the door that its users
take.

The benchmark of the learner alternates the two in one process. Peak memory needs a process for each side: `python
tests/learner_steps.py JSON`, with the arguments of `added`, prints how much two steps add to the memory before them, in
MiB.
"""

import gc, json, re, sys, tempfile, time
from pathlib import Path
from statistics import median
from typing import Callable

import torch

from mcp_grpo.config import load_config
from mcp_grpo.env.episode import Outcome
from mcp_grpo.model.policy import Policy, tiny_qwen3
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.train.learner import Learner

VOCABULARY, COMPLETION = 2048, 256


def model(vocabulary: int = VOCABULARY, **size):
    "A Qwen3 of 26 million parameters, unless told otherwise."
    shape = {"hidden": 512, "layers": 8, "heads": 8, "kv": 4, "head_dim": 64, "mlp": 1536, "max_tokens": 8192} | size
    return tiny_qwen3(vocab=vocabulary, eos_token_id=1, pad_token_id=0, **shape)


def group(
    prompt: int,
    samples: int = 8,
    completion: int = COMPLETION,
    vocabulary: int = VOCABULARY,
    shortest: int = COMPLETION,
) -> list[Trajectory]:
    "Completions of one prompt, of random tokens and with different rewards; ragged if the shortest is shorter."
    generator = torch.Generator().manual_seed(prompt)

    def words(n):
        return torch.randint(2, vocabulary, (n,), generator=generator).tolist()

    start, played = words(prompt), []
    for i in range(samples):
        trajectory = Trajectory.begin(
            start, task_id="toy", key=("", 0, "toy", i), outcome=Outcome(i / samples, {}, False, "answer", [], None)
        )
        n = completion - max(0, completion - shortest) * i // max(1, samples - 1)
        trajectory.append_sampled(words(n), [-7.6] * n)
        played.append(trajectory.check())
    return played


def learner(given: torch.nn.Module, **settings) -> Learner:
    "Ours, in the preset cpu, whose step is one pass; the sampler's logprobs are made up, so they weigh nothing."
    cfg = load_config("cpu", train={"steps": 10_000, "lr": 1e-6, "tis": 0.0} | settings)
    return Learner(Policy(given, name="toy"), cfg.train, max_tokens=8192)


class Clock:
    "Wall and processor seconds, from its making."

    def __init__(self):
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.wall, time.process_time() - self.processor


def trl_steps(
    given: torch.nn.Module,
    played: list[Trajectory],
    steps: int,
    begun: Callable = None,
    done: Callable = None,
    updating: Callable = None,
    **settings,
) -> list[dict]:
    """Train with TRL on the same completions; `begun` and `done` are called around every step, `updating` before the
    weights change. Returns its log."""
    import trl
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast, TrainerCallback

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **about):
            begun and begun()

        def on_pre_optimizer_step(self, args, state, control, **about):
            updating and updating()

        def on_step_end(self, args, state, control, **about):
            done and done()

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [t.ids[: t.prompt_len] for t in played],
            "completion_ids": [t.ids[t.prompt_len :] for t in played],
            "logprobs": [t.logprobs[t.prompt_len :] for t in played],
            "true_reward": [t.outcome.reward for t in played],
        }

    def reward(completions, true_reward, **about):
        return true_reward

    words = {f"w{i}": i for i in range(given.config.vocab_size)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), eos_token="w1", pad_token="w0"
    )
    with tempfile.TemporaryDirectory() as folder:
        args = trl.GRPOConfig(
            **{
                "output_dir": folder,
                "per_device_train_batch_size": len(played),
                "num_generations": len(played),
                "max_completion_length": COMPLETION,
                "max_steps": steps,
                "learning_rate": 1e-6,
                "report_to": [],
                "use_cpu": True,
                "save_strategy": "no",
                "logging_steps": 1,
                "disable_tqdm": True,
            }
            | settings
        )
        data = Dataset.from_list([{"prompt": "w3"}] * steps)
        trainer = trl.GRPOTrainer(
            model=given,
            reward_funcs=reward,
            args=args,
            train_dataset=data,
            processing_class=tokenizer,
            rollout_func=rollout,
            callbacks=[Watch()],
        )
        trainer.train()
    return trainer.state.log_history


def alternate(prompt: int, steps: int, size: dict, **settings) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of every step of each side in turn, TRL with these settings; the first of each is left
    out."""
    played, found, clock = group(prompt), {"trl": [], "ours": []}, []
    ours = learner(model(**size))

    def done():
        found["trl"].append(clock.pop().read())
        mine = Clock()
        ours.step([played])
        found["ours"].append(mine.read())

    trl_steps(model(**size), played, steps + 1, lambda: clock.append(Clock()), done, **settings)
    return {side: seconds[1:] for side, seconds in found.items()}


def agreement(prompt: int, size: dict) -> dict[str, float]:
    """How far loss and gradient of the two are apart with equal settings in float32; the gradient in norm, relative to
    TRL's."""
    played, theirs, given = group(prompt), {}, model(**size)

    def keep():
        theirs.update({name: p.grad.clone() for name, p in given.named_parameters()})

    log = trl_steps(
        given,
        played,
        1,
        updating=keep,
        bf16=False,
        learning_rate=0.0,
        max_grad_norm=1e9,
        gradient_checkpointing=False,
        scale_rewards="none",
    )
    ours = learner(
        model(**size), lr=0.0, kl=0.0, entropy=0.0, grad_clip=1e9, autocast="none", advantage="dr_grpo"
    )  # with "grpo" the small number that both add to the deviation differs
    loss = ours.step([played])["loss"]
    mine = {name: p.grad for name, p in ours.policy.model.named_parameters()}
    away = sum((mine[name] - g).square().sum() for name, g in theirs.items()) / sum(
        g.square().sum() for g in theirs.values()
    )
    return {"gradient": away.sqrt().item(), "loss": abs(loss - log[0]["loss"])}


def seconds(prompt: int, samples: int, steps: int, size: dict) -> float:
    "Median wall time of one of our steps, after a first one; a micro-batch holds the whole group."
    ours, played, found = learner(model(**size), token_budget=prompt + samples * COMPLETION), group(prompt, samples), []
    for _ in range(steps + 1):
        clock = Clock()
        ours.step([played])
        found.append(clock.read()[0])
    return median(found[1:])


def work(prompt: int, samples: int, size: dict) -> float:
    """The floating-point operations of a step that every distinct token needs: forward, backward, and the reference's
    forward pass."""
    given = model(**size)
    cfg, layers = given.config, sum(p.numel() for p in given.model.layers.parameters())
    rest, width = (
        COMPLETION - 1,
        given.config.num_attention_heads * given.config.head_dim * given.config.num_hidden_layers,
    )
    pairs = prompt * (prompt + 1) / 2 + samples * (rest * prompt + rest * (rest + 1) / 2)
    return 4 * (
        2 * layers * (prompt + samples * rest)
        + 4 * width * pairs
        + 2 * samples * COMPLETION * cfg.vocab_size * cfg.hidden_size
    )


def status(name: str) -> float:
    "A line of this process's status, in MiB."
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024


def begin() -> float:
    "Set the peak back; the memory now, in MiB."
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def added(side: str, prompt: int, vocabulary: int, size: dict, settings: dict) -> float:
    "MiB that two steps of one side, ours or trl, add at their peak to what the process held before."
    played, before = group(prompt, vocabulary=vocabulary), []
    if side == "ours":
        ours = learner(model(vocabulary, **size), **settings)
        before.append(begin())
        for _ in range(2):
            ours.step([played])
    else:
        trl_steps(model(vocabulary, **size), played, 2, begun=lambda: before or before.append(begin()), **settings)
    return status("VmHWM") - before[0]


if __name__ == "__main__":
    print(json.dumps(added(**json.loads(sys.argv[1]))))
