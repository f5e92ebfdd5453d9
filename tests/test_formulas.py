"""Loss and gradient against TRL's own, on the same trajectories.

TRL's trainer is given the tokens, masks, logprobs and rewards of our trajectories, as its `rollout_func` and reward
function. It computes its advantages and its loss itself; the same model is trained by our learner.
"""

import pytest
import torch
from conftest import needs

from mcp_grpo.config import TrainConfig
from mcp_grpo.env.episode import Outcome
from mcp_grpo.model.policy import Policy, tiny_qwen3
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.train.advantage import ADVANTAGES, _by_episode, grpo
from mcp_grpo.train.learner import Learner

needs("trl")
import trl

PROMPT, LONGEST = 7, 40  # tokens
REWARDS = ((1.0, 0.0, 0.3, 0.8), (0.5, 0.5, 0.5, 0.5), (0.0, 0.0, 1.0, 0.0))  # the second group has no spread


@pytest.fixture(autouse=True)
def the_standard_deviation_of_a_sample(monkeypatch):
    "TRL divides by the standard deviation with n - 1 in the denominator, `grpo` by the one with n."

    def sample(rewards):
        return grpo(rewards) * ((len(rewards) - 1) / len(rewards)) ** 0.5

    monkeypatch.setitem(ADVANTAGES, "grpo", _by_episode(sample))


def model(seed=0):
    return tiny_qwen3(
        vocab=60, hidden=32, layers=2, heads=4, kv=2, head_dim=8, mlp=48, seed=seed, eos_token_id=1, pad_token_id=0
    )


def episode(group: int, sample: int, reward: float, noise: float, cut: bool) -> Trajectory:
    """Prompt, a sampled turn, a tool's answer and a sampled turn, without its end if it was cut off; the sampler's
    logprobs are off by `noise`."""
    g = torch.Generator().manual_seed(10 * group + sample)
    prompt = torch.randint(2, 60, (PROMPT,), generator=torch.Generator().manual_seed(group)).tolist()

    def words():
        return torch.randint(2, 60, (int(torch.randint(2, 8, (1,), generator=g)),), generator=g).tolist()

    t = Trajectory.begin(
        prompt,
        task_id=str(group),
        key=("", 0, str(group), sample),
        outcome=Outcome(reward, {}, False, "truncated" if cut else "answer", [], None),
    )
    for last in (False, True):
        ids = words() + [1] * (last and not cut)
        t.append_sampled(ids, [0.0] * len(ids))
        if not last:
            t.append_given(words())
    with torch.no_grad():
        logq = model()(torch.tensor([t.ids])).logits[0].log_softmax(-1)
    for i, sampled in enumerate(t.sampled):
        if sampled:
            t.logprobs[i] = min(logq[i - 1, t.ids[i]].item() + noise * torch.randn(1, generator=g).item(), 0.0)
    return t.check()


def batch(noise=0.0, cut=()):
    return [
        [episode(g, s, r, noise, (g, s) in cut) for s, r in enumerate(rewards)] for g, rewards in enumerate(REWARDS)
    ]


def of_trl(groups, tmp_path, moved=None, reference=None, beta=0.0, **settings):
    """TRL's loss and gradient at the weights of `model`, or at those of `moved` with the logprobs of `model` as the old
    ones."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(60)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="w2")), eos_token="w1", pad_token="w0"
    )
    played = [t for group in groups for t in group]

    def rollout(prompts, trainer):
        ends = [t.prompt_len for t in played]
        return {
            "prompt_ids": [t.ids[:n] for t, n in zip(played, ends)],
            "completion_ids": [t.ids[n:] for t, n in zip(played, ends)],
            "logprobs": [t.logprobs[n:] for t, n in zip(played, ends)],
            "env_mask": [t.sampled[n:] for t, n in zip(played, ends)],
            "true_reward": [t.outcome.reward for t in played],
        }

    def reward(completions, true_reward, **about):
        return true_reward

    given = {"beta": 0.0, "temperature": 1.0} | settings
    args = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=len(played),
        num_generations=len(groups[0]),
        max_completion_length=LONGEST - PROMPT,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        **given,
    )
    data = Dataset.from_list([{"prompt": "w3"} for _ in groups])
    trainer = trl.GRPOTrainer(
        model=model(),
        reward_funcs=reward,
        args=args,
        train_dataset=data,
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    if "vllm_importance_sampling_mode" in settings:  # TRL corrects only what vLLM sampled
        generate = trainer._generate

        def generate_as_vllm(*given):
            found = generate(*given)
            trainer.use_vllm = True
            return found

        trainer._generate = generate_as_vllm
    inputs = trainer._generate_and_score_completions([{"prompt": "w3"} for _ in played])

    def logprobs(weights):
        trainer.model.load_state_dict(weights.state_dict())
        mask = inputs["completion_mask"]
        ids, attention = (
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
            torch.cat([inputs["prompt_mask"], mask], 1),
        )
        with torch.no_grad():
            return trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, mask.shape[1])[0]

    if reference is not None:
        trainer.beta, inputs["ref_per_token_logps"] = beta, logprobs(reference)
    if moved is not None:
        inputs["old_per_token_logps"] = logprobs(model())
    trainer.model.load_state_dict((moved or model()).state_dict())
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in trainer.model.named_parameters()}


def of_ours(groups, moved=None, reference=None, **settings):
    "Our loss and gradient, of a first pass, or of a second one at the weights of `moved`."
    cfg = TrainConfig(
        **(
            {
                "kl": 0.0,
                "entropy": 0.0,
                "tis": 0.0,
                "drop_zero_variance_groups": False,
                "lr": 0.0,
                "grad_clip": 0.0,
                "autocast": "none",
                "passes": 1 if moved is None else 2,
            }
            | settings
        )
    )
    learner = Learner(Policy(model()), cfg, max_tokens=LONGEST)
    if reference is not None:
        learner.reference.kept = {name: p.detach() for name, p in reference.named_parameters()}
    losses, add_gradient = [], learner.run_pass.add_gradient

    def add(*batch, **options):
        found = add_gradient(*batch, **options)
        losses.append(found["loss"].item())
        return found

    learner.run_pass.add_gradient = add
    update = learner.optimizer.update

    def update_and_move():
        done = update()
        if moved is not None and len(losses) == 1:
            learner.policy.model.load_state_dict(moved.state_dict())
        return done

    learner.optimizer.update = update_and_move
    learner.step(groups)
    assert len(losses) == cfg.passes
    return losses[-1], {name: p.grad for name, p in learner.policy.model.named_parameters()}


def agree(ours, theirs, tolerance=1e-4):
    assert abs(ours[0] - theirs[0]) < tolerance * max(1.0, abs(theirs[0])), (ours[0], theirs[0])
    away = sum((ours[1][name] - g).square().sum() for name, g in theirs[1].items())
    assert (away / sum(g.square().sum() for g in theirs[1].values())).sqrt() < tolerance


def other():
    "Weights some way from those of `model`, so that ratios leave their bounds."
    found, away = model(), model(1)
    with torch.no_grad():
        for p, q in zip(found.parameters(), away.parameters()):
            p.lerp_(q, 0.5)
    return found


PAIRS = {
    "grpo": ({"loss": "grpo"}, {"loss_type": "grpo"}),
    "ppo_clip": ({"loss": "ppo_clip"}, {"loss_type": "dapo"}),
    "dapo": ({"loss": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "dr_grpo": ({"loss": "dr_grpo"}, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "gspo": (
        {"loss": "gspo"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    "cispo": ({"loss": "cispo"}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "dual_clip": ({"loss": "ppo", "advantage": "grpo", "clip": {"dual": 1.5}}, {"loss_type": "dapo", "delta": 1.5}),
    "cispo_1.2": ({"loss": "cispo", "clip": {"high": 0.2}}, {"loss_type": "cispo", "epsilon_high": 1.2}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_loss_is_what_trl_calls_by_its_name(name, tmp_path):
    """Also where the policy has moved since its old logprobs, and the ratio is clipped on both sides. TRL adds 1e-4 to
    a standard deviation, and 1e-6 is added here: hence the tolerance."""
    ours, theirs = PAIRS[name]
    moved = other()
    agree(of_ours(batch(), moved, **ours), of_trl(batch(), tmp_path, moved, **theirs), 5e-4)


def written_out(groups, kl, reference):
    "Dr. GRPO's loss with a KL term of `k3`, token by token with all logits, in float64."
    policy, fixed = model().double(), reference.double()
    total = 0.0
    for group in groups:
        rewards = torch.tensor([t.outcome.reward for t in group], dtype=torch.float64)
        for t, advantage in zip(group, rewards - rewards.mean()):
            ids, mask = torch.tensor([t.ids]), torch.tensor(t.sampled[1:]).bool()
            logp, logp_ref = (
                m(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[mask, 0] for m in (policy, fixed)
            )
            d = logp_ref.detach() - logp
            total = total + (-(logp - logp.detach()).exp() * advantage + kl * (d.exp() - d - 1)).sum()
    loss = total / sum(LONGEST - t.prompt_len for group in groups for t in group)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in policy.named_parameters()}


@pytest.mark.parametrize("name", ["grpo", "ppo_clip", "dr_grpo"])
def test_the_kl_in_the_loss_is_trls(name, tmp_path):
    "The losses agree; TRL's gradient with a KL term is 0.5 % away from the one in float64, and ours 3e-7."
    ours, theirs = PAIRS[name]
    found, wanted = (
        of_ours(batch(), reference=model(2), kl=0.1, **ours),
        of_trl(batch(), tmp_path, reference=model(2), beta=0.1, **theirs),
    )
    agree(found, wanted, 1e-2)
    assert abs(found[0] - wanted[0]) < 1e-4
    if name == "dr_grpo":
        agree(found, written_out(batch(), 0.1, model(2)), 1e-5)


def test_the_entropy_bonus_is_trls(tmp_path):
    agree(
        of_ours(batch(), loss="ppo_clip", entropy=0.1),
        of_trl(batch(), tmp_path, loss_type="dapo", entropy_coef=0.1),
        5e-4,
    )


@pytest.mark.parametrize("name", ["grpo", "ppo_clip", "dr_grpo"])
def test_masked_episodes_count_as_they_do_in_trl(name, tmp_path):
    "In the baseline and in the averages; their tokens have no loss."
    ours, theirs = PAIRS[name]
    cut = {(0, 1), (2, 2)}
    masked = of_ours(batch(cut=cut), overlong={"mask": True}, **ours)
    agree(masked, of_trl(batch(cut=cut), tmp_path, mask_truncated_completions=True, **theirs), 5e-4)
    with pytest.raises(AssertionError):
        agree(masked, of_ours(batch(cut=cut), **ours))


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_importance_weights_are_trls(mode, tmp_path):
    agree(
        of_ours(batch(0.3), loss="ppo_clip", tis={"cap": 1.2, "mode": mode}),
        of_trl(
            batch(0.3),
            tmp_path,
            loss_type="dapo",
            vllm_importance_sampling_mode=mode,
            vllm_importance_sampling_clip_max=1.2,
        ),
        5e-4,
    )
