"Rows that other programs wrote: a SkyRL task file and a parquet file, against servers that are called otherwise here."

import json, logging

import anyio
import pytest
from conftest import ROOT, needs

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import embedded_specs
from mcp_grpo.env.offer import complete_tasks
from mcp_grpo.env.references import has_references
from mcp_grpo.env.scripted import play_all
from mcp_grpo.task import Task, TaskError, read_tasks, split_by_entity

SKYRL = (
    ROOT / "tests/data/skyrl_tasks.json"
)  # in the form of a public SkyRL project's file, about the companies of the offline world
HERE = {"polygon": "market", "fmp": "fundamentals", "tavily": "web", "slack": "chat", "python_execution": "sandbox"}
NAMES = HERE | {
    "polygon.polygon_get_news": "market.list_ticker_news",
    "tavily.tavily_extract.url": "web.tavily_extract.urls",
    "slack.list_slack_channels": "chat.slack_list_channels",
    "slack.send_slack_message": "chat.slack_post_message",
    "slack.send_slack_message.channel": "chat.slack_post_message.channel_id",
    "slack.send_slack_message.message": "chat.slack_post_message.text",
}


def servers() -> dict:
    "The embedded servers under other names."
    specs = embedded_specs([name.removesuffix("_execution") for name in HERE])
    return {new: spec.model_copy(update={"name": new}) for new, spec in zip(HERE.values(), specs.values())}


def test_skyrl_tasks_load_and_can_be_solved(caplog):
    with caplog.at_level(logging.WARNING, "mcp_grpo.task"):
        tasks = read_tasks(SKYRL, NAMES)
    assert len(tasks) == 30 and {len(task.prompt) for task in tasks} == {2}
    said = [record.message for record in caplog.records]
    assert (
        len(said) == 3
        and "judge_rubric" in said[0]
        and "first user message: 1 rows, the first is 10" in said[2]
        and "max_turns is raised" in said[1]
    ), said

    async def solve():
        async with Pool(servers()) as pool:
            complete = await complete_tasks(tasks, pool, SKYRL.name, NAMES)
            return complete, await play_all("oracle", complete, pool), await play_all("echo_prompt", complete, pool)

    complete, solved, echoed = anyio.run(solve)
    assert not any(has_references(task.tool_sequence) for task in complete)
    assert [outcome.reward for outcome in solved] == [1] * 30, [outcome for outcome in solved if outcome.reward != 1][
        :1
    ]
    assert not any(outcome.success for outcome in echoed)
    rubrics = [row["reward_spec"]["ground_truth"]["judge_rubric"] for row in json.loads(SKYRL.read_text())]
    assert [task.to_row()["reward_spec"]["ground_truth"]["judge_rubric"] for task in complete] == rubrics


def test_a_reading_of_parquet(tmp_path):
    needs("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rows = json.loads(SKYRL.read_text())
    texts = [
        row | {"reward_spec": json.dumps(row["reward_spec"]), "extra_info": json.dumps(row["extra_info"])}
        for row in rows
    ]
    parquet.write_table(pa.Table.from_pylist(texts), tmp_path / "texts.parquet")
    assert read_tasks(tmp_path / "texts.parquet") == read_tasks(SKYRL)
    short = [
        {"question": f"Who is number {i}?", "answer": None if i == 2 else str(i), "servers": ["books"]}
        for i in range(3)
    ]
    parquet.write_table(pa.Table.from_pylist(short), tmp_path / "short.parquet")
    assert read_tasks(tmp_path / "short.parquet") == [Task.from_row(row) for row in short]
    packaged = read_tasks(ROOT / "data/processed/validation.json")[:50]
    parquet.write_table(
        pa.Table.from_pylist(
            [
                {k: json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in task.to_row().items()}
                for task in packaged
            ]
        ),
        tmp_path / "own.parquet",
    )
    assert read_tasks(tmp_path / "own.parquet") == packaged

    parquet.write_table(pa.table({"prompt": ["[]", "[{"]}), tmp_path / "torn.parquet")
    with pytest.raises(TaskError, match="torn.parquet row 1: prompt is not valid JSON"):
        read_tasks(tmp_path / "torn.parquet")


def test_the_split_holds_out_whole_entities():
    tasks = read_tasks(SKYRL, NAMES)
    learnt, held_out = split_by_entity(tasks)
    assert len(learnt) + len(held_out) == 30 and 3 <= len(held_out) <= 8
