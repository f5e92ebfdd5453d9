"""Questions written by hand about five servers: each row is read, its calls are made, and its answer is what they show
or what the data says."""

import asyncio, importlib.util, json, re, sqlite3, sys
from collections import Counter
from contextlib import closing

import pytest
from conftest import ROOT, third_party_part

from mcp_grpo.client.pool import Pool, together
from mcp_grpo.client.spec import from_mcp_servers
from mcp_grpo.env.episode import cut_result, state_text
from mcp_grpo.env.answers import gives, same_argument, shows, written
from mcp_grpo.env.reward import succeeded
from mcp_grpo.env.state import Record, ToolEvent
from mcp_grpo.task import ShortRow, Task, read_tasks

FOLDER = ROOT / "data/written"
sys.path.insert(0, str(FOLDER))
from servers_more import PARTS, SERVERS, entries, specs, write_servers

ROWS = {"helpdesk": 56, "library": 40, "retail": 30, "airline": 30, "people": 30}
AT_ONCE = 4  # episodes


def rows_of(name: str) -> list[dict]:
    "Return a server's rows."
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def tasks_of(name: str, folder) -> list:
    "Return a server's rows as tasks."
    path = FOLDER / f"{name}.jsonl"
    if "state_check" not in ShortRow.model_fields:  # a short row needs an answer there
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps({"answer": "done"} | row) + "\n" for row in rows_of(name)))
    return read_tasks(path)


@pytest.fixture(params=ROWS)
def name(request):
    return request.param


@pytest.fixture
def installed(name):
    "Return the server's name; skip the test where its part is missing."
    if name in PARTS and (why := third_party_part(PARTS[name])):
        pytest.skip(why)
    return name


def test_rows_are_read(name, tmp_path):
    rows, tasks = rows_of(name), tasks_of(name, tmp_path)
    assert len(rows) == len(tasks) == ROWS[name]
    assert all(task.all_tools_of == [name] for task in tasks)
    for texts in ([row["question"] for row in rows], [task.task_id for task in tasks]):
        assert len(set(texts)) == len(texts), Counter(texts).most_common(1)
    for row, task in zip(rows, tasks):
        assert ("answer" in row) != ("state_check" in row), row["question"]
        assert row["calls"] == len(row["proof"]) > 0, row["question"]
        assert row.get("derived", False) == ("sql" in row), row["question"]
        if row.get("answer") is None:
            continue
        values = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        assert gives(task, "; ".join(map(written, values)), values), row["question"]


def test_unanswerable_questions_have_an_answerable_twin(name):
    rows = rows_of(name)
    unknown, changes = (
        [row for row in rows if row.get("answer", "") is None],
        [row for row in rows if "state_check" in row],
    )
    assert 2 <= len(unknown) <= 3 and 3 <= len(changes) <= 6
    for row in unknown:
        assert any(other.get("pair") == row["pair"] and other.get("answer") is not None for other in rows), row[
            "question"
        ]


async def play_all(name: str) -> tuple[dict, list]:
    """Make every row's calls, each in an episode of its own; return the tools, and for each row the events, the state
    before, the state after, and the one that the next episode finds."""
    limit, spec = asyncio.Semaphore(AT_ONCE), specs([name])[name]

    async def read(lease, check):
        return state_text(await lease.call(name, check["tool"], check["params"])) if check else None

    async def play(row):
        check = row.get("state_check")
        async with limit, await pool.lease([name]) as lease:
            before, events = await read(lease, check), []
            for turn, call in enumerate(row["proof"]):
                result = await lease.call(name, call["tool"], call["params"])
                content = cut_result(result.content, spec.max_result_chars)
                events.append(
                    ToolEvent(
                        turn,
                        call["tool"],
                        name,
                        call["tool"],
                        call["params"],
                        content,
                        result.is_error,
                        result.fault or "",
                    )
                )
            after = await read(lease, check)
        async with limit, await pool.lease([name]) as lease:
            return events, before, after, await read(lease, check)

    async with Pool({name: spec}) as pool:
        return (await pool.tools([name]))[name], await together(play, rows_of(name))


def state_task(row: dict) -> Task:
    "Return a row that asks for a change as a task in the long form."
    truth = {"success": {"kind": "state"}, "state_check": row["state_check"]}
    return Task.from_row(
        {
            "prompt": [{"role": "user", "content": row["question"]}],
            "reward_spec": {"ground_truth": truth},
            "extra_info": {"all_tools_of": row["servers"]},
        }
    )


def wrong_words(question: str, tools: dict) -> list[str]:
    "Return what a person would not say: a name of many words as the program writes it, or a word about tools."
    names = [*tools, *(argument for tool in tools.values() for argument in tool.input_schema.get("properties", {}))]
    return [
        name for name in names if re.search(r"[_-]|[a-z][A-Z]", name) and name.lower() in question.lower()
    ] + re.findall(r"\b(?:steps?|tools?|servers?)\b", question, re.I)


def test_answers_are_what_the_server_shows(installed):
    tools, played = asyncio.run(play_all(installed))
    for row, (events, before, after, fresh) in zip(rows_of(installed), played):
        question, check = row["question"], row.get("state_check")
        assert not wrong_words(question, tools), question
        assert not [event.fault for event in events if event.fault], question
        if row.get("answer", "") is None:
            continue
        assert not [event.content for event in events if event.is_error], question
        if check:
            assert row["proof"][-1]["tool"] == check["write_tool"] and check["tool"] in tools, question
            done, undone = (
                Record(events=events, answer="Done.", turns=len(events) + 1, state_before=before, state=state)
                for state in (after, before)
            )
            assert succeeded(state_task(row), done) is True and succeeded(state_task(row), undone) is False, (
                question,
                before,
                after,
            )
            assert fresh == before, f"{question}: the next episode finds it done"
        elif not row.get("derived"):
            shown = "\n".join(event.content for event in events)
            for value in row["answer"] if isinstance(row["answer"], list) else [row["answer"]]:
                assert shows(shown, value), (question, value, shown)


def fill_own(db, name: str) -> None:
    "Fill a database as the server of our own does."
    spec = importlib.util.spec_from_file_location(f"written_{name}", FOLDER / name / "server.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.fill(db)


def fill_graph(db) -> None:
    "Put the memory server's file into three tables."
    db.executescript("""create table entities (name text, type text); create table observations (name text, observation text);
        create table relations (source text, relation text, target text);""")  # noqa: E501
    for line in map(json.loads, (FOLDER / "people/memory.jsonl").read_text().splitlines()):
        if line["type"] == "relation":
            db.execute("insert into relations values (?, ?, ?)", (line["from"], line["relationType"], line["to"]))
            continue
        db.execute("insert into entities values (?, ?)", (line["name"], line["entityType"]))
        db.executemany(
            "insert into observations values (?, ?)", [(line["name"], text) for text in line["observations"]]
        )


def fill_tau2(db, name: str) -> None:
    "Put the data that a tau2 server comes with into a table for each part, with the id and the JSON of each row."
    path = next(
        (SERVERS / PARTS[name]).glob(f"lib/python*/site-packages/tau2_{name}_mcp/data/tau2/domains/{name}/db.json")
    )
    for table, items in json.loads(path.read_text()).items():
        db.execute(f"create table {table} (id text primary key, row text)")
        db.executemany(f"insert into {table} values (?, ?)", [(key, json.dumps(item)) for key, item in items.items()])


def test_derived_answers_are_what_the_data_says(installed):
    with closing(sqlite3.connect(":memory:")) as db:
        if installed == "people":
            fill_graph(db)
        elif installed in PARTS:
            fill_tau2(db, installed)
        else:
            fill_own(db, installed)
        for row in rows_of(installed):
            if "sql" not in row:
                continue
            found = [value for (value,) in db.execute(row["sql"])]
            values = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
            if row.get("any_order"):
                found, values = sorted(found), sorted(values)
            assert len(found) == len(values) and all(map(same_argument, found, values)), (row["question"], found)


def test_no_single_result_shows_the_whole_graph():
    assert (FOLDER / "people/memory.jsonl").stat().st_size > 4 * specs(["people"])["people"].max_result_chars


def test_entries_are_an_ordinary_server_file(tmp_path):
    write_servers(tmp_path / "servers.json")
    assert set(json.loads((tmp_path / "servers.json").read_text())["mcpServers"]) == set(entries()) == set(ROWS)
    assert from_mcp_servers(tmp_path / "servers.json") == specs()
