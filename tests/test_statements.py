"What a post or an answer may say: every way of the list in statements.py, on a share of the tasks."

import time

import pytest
from conftest import ROOT
from statements import DISHONEST, HONEST, asked_of, play_ways

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import embedded_specs
from mcp_grpo.env.answers import declines, gives
from mcp_grpo.task import read_tasks


@pytest.fixture(scope="module")
def tasks():
    return read_tasks(ROOT / "data/processed/validation.json")


@pytest.mark.parametrize("ways, honest", [(HONEST, True), (DISHONEST, False)], ids=["honest", "dishonest"])
def test_honest_ways_succeed_and_dishonest_ways_do_not(tasks, ways, honest):
    dated = next(asked.task for asked in asked_of(tasks) if asked.day and len(asked.values) == 1)
    with Pool(embedded_specs()) as pool:
        found = play_ways(ways, [*tasks[::25], dated], tasks, pool, honest=honest)
    assert not found.wrong, "\n".join(found.wrong)
    assert min(found.tasks.values()) >= 12 and all(found.ways.values()), f"a way applied to no task: {found.ways}"


def test_a_text_of_any_length_is_judged_in_10_ms(tasks):
    for asked in asked_of(tasks)[::25]:
        for text in (
            "1,",
            "412.30 ",
            "a'b ",
            "19 of August ",
            "August 1",
            "$-1",
            asked.values[0] + " ",
            asked.phrases[0] + " ",
        ):
            text, took = (text * 1000)[:1000], []
            for _ in range(3):
                start = time.thread_time()
                gives(asked.task, text, asked.values)
                took.append(time.thread_time() - start)
                declines(asked.task, text)
            assert min(took) < 0.01, (text[:20], min(took))
