"""What a run's updates take at their peak, in a process of its own, beside what is predicted: `python
tests/update_memory.py MODE OVERRIDES` prints both in MiB.

On a GPU it is what torch's allocator had handed out, on a processor what the process has gained since updates of the
packaged model, which have loaded all libraries. The engine's part, its copy of the weights too, is left out.
"""

import json, sys

import torch
from learner_steps import begin, status

from mcp_grpo.config import load_config
from mcp_grpo.model.policy import Machine, open_policy
from mcp_grpo.plan import plan_run, with_settings
from mcp_grpo.train.learner import Learner
from mcp_grpo.train.memory import largest_micro_batch, predict_memory


def measured(cfg, updates: int = 2) -> float:
    "MiB that the policy, its learner and some updates of the largest micro-batch take at their peak."
    gpu = torch.cuda.is_available() and cfg.model.device != "cpu"
    before = 0.0 if gpu else begin()
    policy = open_policy(cfg, plan_run(cfg))
    torch.cuda.reset_peak_memory_stats() if gpu else begin()
    learner = Learner(policy, cfg.train, max_tokens=cfg.rollout.max_tokens)
    for _ in range(updates):
        batch = largest_micro_batch(
            cfg, policy.causal.config.get_text_config().vocab_size, learner.share, device=policy.device
        )
        learner.optimizer.zero_grad()
        learner.run_pass.add_gradient(batch, len(batch.row))
        learner.optimizer.update()
    return torch.cuda.max_memory_allocated() / 2**20 if gpu else status("VmHWM") - before


if __name__ == "__main__":
    cfg = load_config(*sys.argv[1:3])
    measured(with_settings(cfg, {"model.name": "tiny", "rollout.max_tokens": 256}))
    found, predicted = measured(cfg), predict_memory(cfg, plan_run(cfg), Machine.here())
    reserved = (
        torch.cuda.max_memory_reserved() / 2**20 if torch.cuda.is_available() else found
    )  # with what its allocator keeps for later
    print(
        json.dumps(
            {
                "measured": found,
                "predicted": (predicted.kept - predicted.copy - predicted.libraries + predicted.update) / 2**20,
                "reserved": reserved,
            }
        )
    )
