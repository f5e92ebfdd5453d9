"""Every fault that `train.health` names, put where it would happen into a run of the packaged model with real episodes;
and runs without a fault."""

import math, tempfile
from dataclasses import dataclass, replace
from typing import Callable

import torch

from mcp_grpo.client.pool import open_pool
from mcp_grpo.config import find_path, load_config
from mcp_grpo.model.policy import Weights, open_policy
from mcp_grpo.plan import plan_run
from mcp_grpo.rollout.chat import open_chat
from mcp_grpo.rollout.engine import open_engine
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.task import read_tasks
from mcp_grpo.train.health import HealthError
from mcp_grpo.train.trainer import Trainer

Groups = list[list[Trajectory]]
SMALL = "train.tasks_per_step=2,rollout.samples=4,train.steps=20,train.checkpoint_every=0"


def rewarded(t: Trajectory, reward: float | None, success: bool = False, reason: str = ""):
    "Replace the outcome of an episode."
    t.outcome = replace(t.outcome, reward=reward, rewards={}, success=success, reason=reason)


def spread(groups: Groups, trainer: Trainer):
    "Different rewards in every group, so that every step learns."
    for group in groups:
        for i, t in enumerate(group):
            rewarded(t, i / len(group), i % 2 == 0)


def equal(success: Callable[[int], bool]) -> Callable:
    "The same reward for all episodes of a group; whether they succeed depends on its number."

    def spoil(groups, trainer):
        for i, group in enumerate(groups):
            for t in group:
                rewarded(t, float(success(i)), success(i))

    return spoil


def with_spread(spoil: Callable[[Trajectory, Trainer], None]) -> Callable:
    "Different rewards, and a change of every episode."

    def both(groups, trainer):
        spread(groups, trainer)
        for group in groups:
            for t in group:
                spoil(t, trainer)

    return both


def without_mask(t, trainer):
    t.sampled = [0] * len(t.sampled)


def of_old_version(t, trainer):
    for turn in t.turns:
        turn.version -= trainer.steps_done > 0


def other_tokens(t, trainer):
    t.ids = [(token + 1) % 600 if sampled else token for token, sampled in zip(t.ids, t.sampled)]


def with_nan(t, trainer):
    t.logprobs = [math.nan if sampled else 0.0 for sampled in t.sampled]


def nan_reward(groups, trainer):
    spread(groups, trainer)
    rewarded(groups[0][0], math.nan)


def most_lost(groups, trainer):
    spread(groups, trainer)
    for group in groups:
        for t in group[1:]:
            rewarded(t, None, reason="timeout: polygon.get_aggs: no answer in 2 s")


def one_family_fails(groups, trainer):
    for family, group in zip(("chain", "lookup"), groups):
        for i, t in enumerate(group):
            t.family = family
            rewarded(t, i / len(group), family == "lookup")


def fails(groups, trainer):
    spread(groups, trainer)
    for group in groups:
        for t in group:
            rewarded(t, t.outcome.reward)


def freeze(trainer):
    for p in trainer.policy.trainable().values():
        p.requires_grad_(False)


def no_steps(trainer):
    trainer.learner.optimizer.torch.step = lambda *given: None


def train_something_else(trainer):
    unused = torch.nn.Parameter(torch.zeros(8))
    trainer.policy.model.register_parameter("unused", unused)

    def step(*given):
        unused.data.add_(1)

    trainer.learner.optimizer.torch.step = step


def keep_old_weights(trainer):
    trainer.policy.publish = lambda *given: Weights(trainer.policy.version, "shared")


def use_own_logprobs(trainer):
    run_pass = trainer.learner.run_pass
    add_gradient = run_pass.add_gradient

    def add(b, *given, **settings):
        b.logp_sampler = trainer.policy.run(lambda causal: run_pass.score(b, causal))[0].detach()
        return add_gradient(b, *given, **settings)

    run_pass.add_gradient = add


def nan_gradient(trainer):
    backward = trainer.learner.optimizer.backward

    def spoiled(loss, last=True):
        loss = loss * 1.0
        loss.register_hook(lambda g: g * math.nan)
        backward(loss, last)

    trainer.learner.optimizer.backward = spoiled


def sharpen(trainer):
    if trainer.steps_done == 1:
        with torch.no_grad():
            trainer.policy.causal.model.norm.weight.mul_(200.0)


@dataclass
class Fault:
    "What is done to a run."

    spoil: Callable = spread  # to the episodes of every step
    prepare: Callable = lambda trainer: None  # to the trainer, once
    before: Callable = lambda trainer: None  # to the trainer, before every step
    settings: str = ""
    steps: int = 4


FAULTS = {
    "policy_does_not_move (learning_rate_zero)": Fault(settings="train.lr=0"),
    "policy_does_not_move (zero_advantages)": Fault(equal(lambda group: False)),
    "policy_does_not_move (empty_mask)": Fault(with_spread(without_mask)),
    "policy_does_not_move (frozen_weights)": Fault(prepare=freeze, settings="model.weights=lora,train.kl=0"),
    "policy_does_not_move (optimizer_not_stepping)": Fault(prepare=no_steps),
    "policy_does_not_move (policy_not_trained)": Fault(prepare=train_something_else, settings="train.passes=2"),
    "stale_sampler (old_version)": Fault(with_spread(of_old_version)),
    "stale_sampler (old_weights)": Fault(
        prepare=keep_old_weights, settings="rollout.dtype=bfloat16,train.lr=0.01", steps=6
    ),
    "token_drift (other_tokens_or_distribution)": Fault(with_spread(other_tokens)),
    "sampler_logprobs_unused (not_recorded)": Fault(prepare=use_own_logprobs),
    "exploding_ratio (update_too_large)": Fault(
        settings="train.entropy=1,train.lr=0.003,train.passes=4,train.grad_clip=0"
    ),
    "kl_runaway (update_too_large)": Fault(settings="train.entropy=1,train.lr=0.01", steps=8),
    "entropy_collapse (no_exploration)": Fault(fails, before=sharpen, steps=5),
    "rewards_without_spread (all_succeed)": Fault(equal(lambda group: True), steps=6),
    "rewards_without_spread (all_fail)": Fault(equal(lambda group: False), steps=6),
    "rewards_without_spread (equal_within_groups)": Fault(equal(lambda group: group == 0), steps=6),
    "family_only_fails (chain)": Fault(
        one_family_fails, lambda trainer: setattr(trainer.health, "enough", 30), steps=10
    ),
    "too_many_invalid_episodes (timeout)": Fault(most_lost),
    "not_finite (reward)": Fault(nan_reward),
    "not_finite (loss)": Fault(with_spread(with_nan)),
    "not_finite (gradient)": Fault(prepare=nan_gradient),
}


class Spoiled(Trainer):
    "A trainer with a fault."

    fault: Fault | None = None

    def rollout(self, step):
        if self.fault:
            self.fault.before(self)
        groups = super().rollout(step)
        if self.fault:
            self.fault.spoil(groups, self)
        return groups


def verdicts(
    steps: int, mode: str = "cpu", settings: str = "", seed: int = 0, fault: Fault | None = None
) -> list[tuple[int, str, bool]]:
    "Train for some steps, or until the run is stopped; every verdict as step, name (cause), critical."
    cfg = load_config(mode, settings, seed=seed)
    tasks = read_tasks(find_path(cfg.data.train, "task file"))
    policy, said = open_policy(cfg, plan_run(cfg)), []
    with tempfile.TemporaryDirectory() as folder, open_pool(cfg, folder) as pool:
        trainer = Spoiled(cfg, policy, open_engine(cfg, policy), pool, open_chat(cfg, policy.tokenizer), tasks)
        trainer.fault = fault
        if fault:
            fault.prepare(trainer)
        try:
            for step in trainer.fit():
                said += [(step.step, f"{v.name} ({v.cause})", v.critical) for v in step.verdicts]
                if step.step == steps:
                    break
        except HealthError:
            pass
    return said


def named(name: str) -> list[tuple[int, str, bool]]:
    "What is said of a run with a fault."
    fault = FAULTS[name]
    return verdicts(fault.steps, settings=",".join(filter(None, (SMALL, fault.settings))), fault=fault)
