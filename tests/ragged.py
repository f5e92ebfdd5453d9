"""Ragged work for samplers: episodes of several turns, each of a length of its own, with a tool's result after each
turn.

No tokens are recorded, because only their number counts. The contenders of the benchmarks of rollouts play the same
work.
"""

import asyncio, random, time

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from mcp_grpo.client.pool import together
from mcp_grpo.aio import run_sync
from mcp_grpo.rollout.engine import Engine, Sampling

Work = list[
    tuple[list[int], list[tuple[int, list[int]]]]
]  # of each episode: its prompt, and the tokens to sample and the result of each turn


def ragged_work(episodes: int, vocabulary: int = 2000, longest: int = 96, seed: int = 0) -> Work:
    "Episodes of 1 to 4 turns of up to `longest` sampled tokens."
    rng = random.Random(seed)

    def ids(n):
        return [rng.randrange(5, vocabulary) for _ in range(n)]

    budgets = [n for n in (4, 8, 16, 32, 64, 96, 128, 256) if n <= longest]
    return [
        (
            ids(rng.randrange(60, 300)),
            [(rng.choice(budgets), ids(rng.randrange(5, 60))) for _ in range(rng.randrange(1, 5))],
        )
        for _ in range(episodes)
    ]


def sampled_tokens(work: Work) -> int:
    return sum(budget for _, turns in work for budget, _ in turns)


class Budgets(StoppingCriteria):
    "Each row may sample its own number of tokens."

    def __init__(self, start: int, budgets: list[int], device):
        self.start, self.budgets = start, torch.tensor(budgets, device=device)

    def __call__(self, ids, scores, **given):
        return ids.shape[1] - self.start >= self.budgets


def by_generate(model, work: Work, wait: float = 0.0) -> float:
    "Play with `generate` of transformers, a batch for every turn and all its tools at once; seconds."
    start, texts, device = time.perf_counter(), [list(prompt) for prompt, _ in work], model.device
    for turn in range(max(len(turns) for _, turns in work)):
        rows = [i for i, (_, turns) in enumerate(work) if turn < len(turns)]
        longest = max(len(texts[i]) for i in rows)
        ids = torch.tensor([[0] * (longest - len(texts[i])) + texts[i] for i in rows], device=device)
        mask = torch.tensor([[0] * (longest - len(texts[i])) + [1] * len(texts[i]) for i in rows], device=device)
        budgets = [work[i][1][turn][0] for i in rows]
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=max(budgets),
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Budgets(longest, budgets, device)]),
        ).tolist()
        for row, i in enumerate(rows):
            texts[i] += out[row][longest : longest + budgets[row]] + work[i][1][turn][1]
        time.sleep(wait)
    return time.perf_counter() - start


def by_engine(engine: Engine, work: Work, wait: float = 0.0) -> float:
    "Play with an engine, every episode at its own pace; seconds."

    async def episode(i: int) -> None:
        text = list(work[i][0])
        for turn, (budget, result) in enumerate(work[i][1]):
            text += (await engine.generate(text, Sampling(1.0, budget), ("bench", 0, "task", i, turn))).ids + result
            await asyncio.sleep(wait)
        await engine.release(("bench", 0, "task", i))

    async def all_of_them():
        engine.expect(len(work))
        try:
            await together(episode, list(range(len(work))))
        finally:
            engine.expect(-len(work))

    start = time.perf_counter()
    run_sync(all_of_them)
    return time.perf_counter() - start
