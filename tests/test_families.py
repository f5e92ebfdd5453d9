"""Families of models: small random weights with the layer kinds of the real configuration, windows shorter than the
sequences."""

import asyncio

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mcp_grpo.model.heads import Head, disproved_head, unsupported_head
from mcp_grpo.model.logprob import sampled_logprobs, token_logprobs
from mcp_grpo.model.tree import PrefixTree, tree_hidden, unsupported_tree
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.hf import HFEngine

SMALL = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SLIDING = ["sliding_attention", "full_attention"] * 2
FAMILIES = {
    "llama": {},
    "llama4_text": {
        "layer_types": ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"],
        "attention_chunk_size": 6,
        "attn_temperature_tuning": False,
        "num_local_experts": 2,
        "intermediate_size_mlp": 48,
    },
    "qwen2": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "qwen3": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2},
    "gemma3_text": {"layer_types": SLIDING, "sliding_window": 7, "final_logit_softcapping": 3.0},
    "gemma3n_text": {
        "layer_types": SLIDING[:2] * 3,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "sliding_window": 7,
        "final_logit_softcapping": 3.0,
        "vocab_size_per_layer_input": 60,
        "hidden_size_per_layer_input": 8,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0, 0.0, 0.0],
        "laurel_rank": 4,
    },
    "gemma4_text": {
        "layer_types": SLIDING[:2] * 3,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "global_head_dim": 8,
        "sliding_window": 7,
        "final_logit_softcapping": 3.0,
        "vocab_size_per_layer_input": 60,
        "hidden_size_per_layer_input": 8,
    },
    "mistral": {"sliding_window": 7},
    "ministral": {"layer_types": SLIDING, "sliding_window": 7},
    "mixtral": {"sliding_window": 7, **EXPERTS},
    "olmo3": {"layer_types": SLIDING, "sliding_window": 7},
    "exaone4": {"layer_types": SLIDING, "sliding_window": 7, "sliding_window_pattern": 2},
    "cohere": {"logit_scale": 4.0},
    "cohere2": {"layer_types": SLIDING, "sliding_window": 7, "logit_scale": 4.0},
    "granite": {"logits_scaling": 0.25, "attention_multiplier": 0.3, "residual_multiplier": 0.5},
    "granitemoe": {"logits_scaling": 0.25, **EXPERTS},
    "phi": {},
    "phi3": {"sliding_window": 7},
    "starcoder2": {"sliding_window": 7},
    "nanochat": {"final_logit_softcapping": 3.0},
}


torch.set_num_threads(1)  # products this small are faster on one thread


def family(name: str) -> torch.nn.Module:
    "A small model with large random weights, so that what a layer sees matters."
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **SMALL | FAMILIES[name])
        config._experts_implementation = "eager"  # the grouped kernel has no float64
        model = AutoModelForCausalLM.from_config(config).eval()
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        if (bias := model.get_output_embeddings().bias) is not None:
            torch.nn.init.normal_(bias)
    return model


def rows():
    "Two groups of three rows: token ids, and which of them are sampled."
    draw = torch.Generator().manual_seed(1)

    def tokens(n):
        return torch.randint(3, 60, (n,), generator=draw).tolist()

    for shared in (tokens(25), tokens(31)):
        for n in (5, 9, 20):
            yield shared + tokens(n), [0] * len(shared) + [1] * n


def plain(model, ids, temperature=1.0):
    "Logprobs of the tokens of a row after the first, as transformers computes them."
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(ids)[1:, None])[:, 0]


@pytest.mark.parametrize("name", FAMILIES)
def test_family_is_sampled_as_transformers_does(name):
    model = family(name)
    assert not disproved_head(model)
    prompts = [row[: 20 + 3 * i] for i, (row, _) in enumerate(rows())][::2]
    greedy, warm = Sampling(0.0, 12), Sampling(0.7, 8)
    expected = [
        model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, eos_token_id=None)[0, len(p) :].tolist()
        for p in prompts
    ]

    async def sample(engine):
        alone = await asyncio.gather(*(engine.generate(p, greedy, ("f", 0, i, 0, 0)) for i, p in enumerate(prompts)))
        group = [engine.generate(prompts[1], warm, ("f", 0, "g", s, 0)) for s in range(8)]
        group = await asyncio.gather(*group)
        assert engine.scheduler.prefix_key  # the group's prompt was read once for all
        later = [*prompts[1], *group[-1].ids, 7, 8, 9, 10]  # a tool's result
        return alone, group, later, await engine.generate(later, warm, ("f", 0, "g", 7, 1))

    for chunk in (4096, 9):
        alone, group, later, second = asyncio.run(sample(HFEngine(model, chunk=chunk)))
        assert [turn.ids for turn in alone] == expected
        for prompt, turn in [*((prompts[1], turn) for turn in group), (later, second)]:
            ids = [*prompt, *turn.ids]
            sampled = torch.tensor([[False] * len(prompt) + [True] * len(turn.ids)])
            learner = sampled_logprobs(model, torch.tensor([ids]), sampled, 0.7)[0]
            torch.testing.assert_close(torch.tensor(turn.logprobs), learner, atol=1e-4, rtol=0)
            torch.testing.assert_close(learner, plain(model, ids, 0.7)[len(prompt) - 1 :], atol=1e-4, rtol=0)


TREES = [(name, "mcp_grpo_tree") for name in FAMILIES]
TREES += [(name, "mcp_grpo_tree_flex") for name in ("gemma3_text", "llama4_text")]


@pytest.mark.parametrize("name, layout", TREES)
def test_gradient_of_tree_is_that_of_plain_rows(name, layout, monkeypatch):
    monkeypatch.setattr("mcp_grpo.model.tree.LAYOUT", layout)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *given: None)
    model, (ids, sampled) = family(name).double(), zip(*rows())
    assert not unsupported_tree(model) and not unsupported_head(model)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def gradient(logp):
        loss = (logp * torch.linspace(-1, 1, len(logp))).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        return torch.cat(
            [torch.zeros_like(p).flatten() if g is None else g.flatten() for g, p in zip(grads, parameters)]
        )

    tree = PrefixTree(ids, sampled)
    assert tree.ids.numel() < sum(map(len, ids))
    by_tree = token_logprobs(tree_hidden(model, tree), Head.of(model), tree.targets)[0]
    by_rows = torch.cat([plain(model.double(), i)[s.index(1) - 1 :] for i, s in zip(ids, sampled)])
    torch.testing.assert_close(by_tree, by_rows.to(by_tree), atol=1e-4, rtol=0)
    ours, theirs = gradient(by_tree), gradient(by_rows)
    assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
