"""Three steps of the learner in one process, or in ranks that torchrun starts, on the same trajectories.

`python -m torch.distributed.run --standalone --nproc-per-node 2 tests/sharded.py FOLDER` writes
`FOLDER/<case>-2.safetensors`, the change of every weight; without torchrun it writes `<case>-1.safetensors`. Every case
also saves a checkpoint after two steps, resumes it in a new policy and compares; at the end each side resumes what the
other side saved, if it has.
"""

import atexit, json, math, os, sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mcp_grpo.config import load_config
from mcp_grpo.env.episode import Outcome
from mcp_grpo.model.parallel import ShardedPolicy, World, read_deepspeed
from mcp_grpo.model.policy import Plan, Policy, tiny_qwen3
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.train.checkpoint import load_checkpoint, save_checkpoint
from mcp_grpo.train.health import Health
from mcp_grpo.train.learner import Learner
from mcp_grpo.train.optim import Optimizer, ShardedOptimizer

CASES = {  # settings of the learner; `rows`: without the tree
    "tree": {},
    "rows": {"rows": True},
    "accumulation": {"token_budget": 40, "passes": 2},
    "updates": {"micro_batch": 2, "accumulation": 3},
    "checkpointing": {"gradient_checkpointing": True},
    "adam": {"optimizer": "adamw_torch_fused", "lr": 1e-3},
    "moving": {
        "token_budget": 40,
        "passes": 2,
        "optimizer": "adamw_torch_fused",
        "lr": 1e-3,
        "advantage": "gae",
        "value_head": {"lr": 1e-2},
        "reference": {"kind": "ema", "every": 1, "mix": 0.5},
    },
}


def tiny():
    return Policy(tiny_qwen3(vocab=40, hidden=32, layers=2, heads=4, kv=2, head_dim=8, mlp=48), name="toy")


def episode(prompt: list[int], seed: int) -> Trajectory:
    "An episode of two turns with a tool's answer between, random but repeatable."
    generator = torch.Generator().manual_seed(seed)

    def ids(n):
        return torch.randint(40, (n,), generator=generator).tolist()

    reward = float(torch.rand(1, generator=generator))
    trajectory = Trajectory.begin(
        prompt, task_id="toy", key=("", 0, "toy", seed), outcome=Outcome(reward, {}, reward > 0.5, "answer", [], None)
    )
    for n in (4, 3 + seed % 4):
        trajectory.append_sampled(ids(n), [-3.0] * n)
        if n == 4:
            trajectory.append_given(ids(3))
    return trajectory.check()


def batch(step: int) -> list[list[Trajectory]]:
    return [[episode([step, 3, 1, 4, group], 100 * step + 10 * group + n) for n in range(4)] for group in range(3)]


def make(case: dict, world: World) -> Learner:
    "A learner in this process, or in all ranks."
    settings = {
        "steps": 3,
        "passes": 1,
        "lr": 0.1,
        "lr_schedule": "constant",
        "optimizer": "sgd",
        "kl": 0.1,
        "entropy": 0.01,
        "grad_clip": 0.05,
        "autocast": "none",
    }
    cfg = load_config("full", train=settings | {name: value for name, value in case.items() if name != "rows"})
    policy = tiny()
    if world.size > 1:
        policy = ShardedPolicy(policy, world, "cpu", read_deepspeed(cfg, Plan("cpu", "float32")))
    policy.load(tiny().tensors())  # as after a warm start
    learner = Learner(policy, cfg.train, world=world)
    if case.get("rows"):
        learner.share = False
    return learner


def everything(learner: Learner) -> dict:
    """All that this rank would write into a checkpoint: its share of the weights, of a moving reference and of the
    optimizer's state."""
    kept = learner.reference.tensors() if learner.reference and learner.reference.moves else {}
    return {
        **{name: value.clone() for name, value in learner.policy.tensors().items()},
        **{f"reference.{name}": value.clone() for name, value in kept.items()},
        **learner.optimizer.tensors(),
    }


def whole(learner: Learner) -> dict:
    "All weights and the moving reference, in every rank."
    found = {name: value for share in learner.world.gather(everything(learner)) for name, value in share.items()}
    return {name: value for name, value in found.items() if not name.startswith(("state.", "scaler."))}


def distance(a: dict, b: dict, start: dict) -> float:
    "The difference of two changes, in norm, relative to the second."
    return (
        (
            sum((a[name] - b[name]).norm() ** 2 for name in b)
            / sum((b[name] - start.get(name, 0)).norm() ** 2 for name in b)
        )
        .sqrt()
        .item()
    )


def save(folder: Path, learner: Learner, step: int):
    return save_checkpoint(
        folder, step, learner.policy, learner.optimizer, world=learner.world, reference=learner.reference
    )


def run(name: str, folder: Path, world: World) -> dict:
    "One case: the change, the metrics, and how far a resumed run is from it."
    learner, resumed = make(CASES[name], world), make(CASES[name], world)
    saved = folder / f"{name}-saved-{world.size}"
    for step in range(3):
        if step == 2:
            save(saved, learner, 2)
        metrics = learner.step(batch(step))
    end, start = whole(learner), {n: p.detach().clone() for n, p in tiny().trainable().items()}
    start |= {f"reference.{n}": value for n, value in start.items()}
    if not world.rank:
        save_file({n: value.contiguous() for n, value in end.items()}, folder / f"{name}-{world.size}.safetensors")
    load_checkpoint(saved, resumed.policy, resumed.optimizer, world=world, reference=resumed.reference)
    resumed.steps_done = 2
    resumed.step(batch(2))
    found = {
        "resumed": distance(whole(resumed), end, start),
        "metrics": {key: metrics[key] for key in ("loss", "kl", "grad_norm", "tokens_sampled", "skipped")},
    }
    other = folder / f"{name}-saved-{3 - world.size}"
    if other.exists():
        crossed = make(CASES[name], world)
        load_checkpoint(other, crossed.policy, crossed.optimizer, world=world, reference=crossed.reference)
        crossed.steps_done = 2
        crossed.step(batch(2))
        found["crossed"] = distance(whole(crossed), load_file(folder / f"{name}-{3 - world.size}.safetensors"), start)
        found["change"] = distance(end, load_file(folder / f"{name}-{3 - world.size}.safetensors"), start)
    return found


def spoil(fault: str, learner: Learner, groups: list[list[Trajectory]]):
    """Put a value that is not finite into a step; but for the reward, which all ranks see, it reaches the last rank
    alone."""
    last, t = learner.world.rank == learner.world.size - 1, groups[0][0]
    if fault == "reward":
        t.outcome = replace(t.outcome, reward=math.nan)
    if fault == "loss":
        t.logprobs = [math.nan if sampled else 0.0 for sampled in t.sampled]
    add = Optimizer.backward if learner.world.size == 1 else ShardedOptimizer.backward

    def backward(loss, final=True):
        if fault == "gradient" and last and loss.requires_grad:
            loss = loss * 1.0
            loss.register_hook(lambda g: g * math.nan)
        add(learner.optimizer, loss, final)

    learner.optimizer.backward = backward


def not_finite(fault: str, world: World) -> dict:
    """Three steps with such a value, and a healthy one: what moved, what every rank says of each, and whether they all
    say the same."""
    learner = make(CASES["moving"] | {"passes": 1}, world)
    learner.step(batch(0))
    health, start, said, skipped = Health(learner.cfg), everything(learner), [], []
    for step in (1, 2, 3):
        groups = batch(step)
        spoil(fault, learner, groups)
        metrics = learner.step(groups)
        verdicts = [
            verdict for verdict in health.check(metrics, groups) if verdict.name == "not_finite"
        ]  # the sampler's logprobs are made up, and that is said too
        said.append([verdict.cause + ", critical" * verdict.critical for verdict in verdicts])
        skipped.append(metrics["skipped"])
    end = everything(learner)
    del learner.optimizer.backward
    learner.step(batch(4))
    moved = [name for name in start if not name.startswith("reference") and not torch.equal(start[name], end[name])]
    stood = [name for name, value in learner.policy.tensors().items() if torch.equal(end[name], value)]
    ranks = world.gather([said, skipped])
    return {
        "skipped": skipped,
        "moved": sum(world.gather(moved), []),
        "said": said,
        "agree": all(rank == ranks[0] for rank in ranks),
        "stood": sum(world.gather(stood), []),
    }


def starve(name: str):
    """Let the threads of a name run only where nothing else wants the processor, as on a machine that is busy: a rank
    must be able to end before them."""
    for thread in Path("/proc/self/task").glob("*"):
        if (thread / "comm").read_text().strip() == name:
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def main():
    folder, cases = Path(sys.argv[1]), sys.argv[2].split(",") if len(sys.argv) > 2 else list(CASES)
    world = World.join("cpu") if "RANK" in os.environ else World()
    torch.set_num_threads(1)
    found = {name: run(name, folder, world) for name in cases}
    found["not finite"] = {fault: not_finite(fault, world) for fault in ("reward", "loss", "gradient")}
    if not world.rank:
        (folder / f"found-{world.size}.json").write_text(json.dumps(found, indent=1))
    atexit.register((folder / f"left-{world.rank}-of-{world.size}").touch)
    starve("pt_gloo_runloop")
    world.leave()


if __name__ == "__main__":
    main()
