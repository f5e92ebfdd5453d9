"""The questions written by hand: their form, their answers computed once more from the content, and every answer played
on the real server."""

import re, sys

import anyio
import pytest
from conftest import ROOT, third_party_part

from mcp_grpo.client.pool import Pool
from mcp_grpo.env.answers import shows, written
from mcp_grpo.env.episode import state_text
from mcp_grpo.env.reward import succeeded
from mcp_grpo.env.state import Record, ToolEvent
from mcp_grpo.task import ShortRow, Task, read_rows, read_tasks, task_digest

WRITTEN = ROOT / "data/written"
sys.path[:0] = [str(ROOT / "tests/servers"), str(WRITTEN)]
from servers import WRITTEN as SERVERS
from servers import write_servers_json, written_servers
from third_party import third_party
from written_answers import ANSWERS, time

from mcp_grpo.client.spec import from_mcp_servers

LEAST_CHANGES = {
    "filesystem": 5,
    "git": 5,
    "sqlite": 4,
    "motherduck": 4,
    "time": 0,
    "everything": 0,
}  # the last two have no state that a tool reads


def rows_of(server: str) -> list[dict]:
    return read_rows(WRITTEN / f"{server}.jsonl")


def values_of(row: dict) -> list:
    return row["answer"] if isinstance(row["answer"], list) else [row["answer"]]


def in_full(row: dict) -> dict:
    "A short row with a state check, in SkyRL's format; for a `ShortRow` that does not know state checks."
    truth = {
        "task_id": row.get("task_id") or task_digest(row["question"], row["servers"]),
        "complexity": "moderate",
        "success": {"kind": "state"},
        "state_check": row["state_check"],
    }
    return {
        "prompt": [{"role": "user", "content": row["question"]}],
        "reward_spec": {"ground_truth": truth},
        "extra_info": {"all_tools_of": row["servers"]},
    }


def tasks_of(server: str) -> list[Task]:
    "The tasks of a server, in the file's order."
    if "state_check" in ShortRow.model_fields:
        return read_tasks(WRITTEN / f"{server}.jsonl")
    return [Task.from_row(in_full(row) if "state_check" in row else row) for row in rows_of(server)]


async def calls_of(lease, server: str, calls: list[dict], longest: int) -> tuple[list[ToolEvent], str]:
    "The calls that prove an answer as an episode holds them, and what went wrong."
    events, wrong = [], ""
    for turn, call in enumerate(calls):
        result = await lease.call(server, call["tool"], call["params"])
        events.append(
            ToolEvent(
                turn,
                call["tool"],
                server,
                call["tool"],
                call["params"],
                result.content,
                bool(result.is_error),
                result.fault or "",
            )
        )
        if result.fault or result.is_error:
            wrong = f"{call['tool']} failed: {result.content[:200]}"
        if len(result.content) > longest:
            wrong = f"the result of {call['tool']} is longer than what the policy sees"
    return events, wrong


async def state_of(lease, check: dict) -> tuple[str, bool]:
    "The state as an episode reads it, and whether the tool refused."
    result = await lease.call(check["server"], check["tool"], check["params"])
    return state_text(result), bool(result.is_error)


async def fault_of(pool: Pool, server: str, row: dict, task: Task) -> str:
    "What is wrong with a row, judged as an episode would be; empty if nothing is."
    async with await pool.lease([server]) as lease:
        if unknown := {call["tool"] for call in row["proof"]} - set(lease.tools(server)):
            return f"no such tool: {unknown}"
        check = row.get("state_check")
        before, refused = await state_of(lease, check) if check else ("", False)
        events, wrong = await calls_of(lease, server, row["proof"], pool.specs[server].max_result_chars)
        if wrong:
            return wrong
        shown = "\n".join(event.content for event in events)
        if check:
            after, refused_after = await state_of(lease, check)
            record = Record(
                events,
                "Done.",
                turns=len(events),
                state_before=None if refused else before,
                state=after,
                state_refused=refused_after,
            )
            nothing = Record(
                [],
                "Done.",
                turns=1,
                state_before=record.state_before,
                state=None if refused else before,
                state_refused=refused,
            )
            if succeeded(task, nothing):
                return "it is judged done before anything is"
            return "" if succeeded(task, record) is True else f"the change is not judged right: {after[:300]}"
        if row["answer"] is None:
            if not succeeded(task, Record(events, "I don't know.")):
                return "that it cannot be known is not taken"
            return "".join(f"{word} is in the results; " for word in row.get("absent", []) if shows(shown, word))
        if not succeeded(task, Record(events, "; ".join(map(written, values_of(row))))):
            return "its own answer is not taken"
        others = [value + 1 if isinstance(value, (int, float)) else "Teapot" for value in values_of(row)]
        for answer in (
            "I don't know.",
            "; ".join(map(written, others)),
            " or ".join(map(written, [*values_of(row), *others])),
        ):
            if succeeded(task, Record(events, answer)):
                return f"{answer!r} is taken"
        return (
            ""
            if row.get("derived")
            else "".join(f"{value!r} is not in the results; " for value in values_of(row) if not shows(shown, value))
        )


async def check_written(server: str, pool: Pool) -> list[str]:
    "Make the calls noted for each row on the real server; returns what is wrong with which row."
    found = [
        (row["task_id"], await fault_of(pool, server, row, task))
        for row, task in zip(rows_of(server), tasks_of(server))
    ]
    return [f"{task_id}: {fault}" for task_id, fault in found if fault]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    third_party_part()
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def specs(scratch):
    return written_servers(scratch / "made")


@pytest.fixture(scope="module")
def left_out(scratch):
    "Why a server is not there, by name; servers that are there are left out."
    return {
        name: server.left_out
        for name, server in third_party(scratch / "look").items()
        if name in SERVERS and server.left_out
    }


def needs(left_out: dict[str, str], *servers: str) -> None:
    "Skip a test without its servers, and give the reason."
    for server in servers:
        if server in left_out:
            pytest.skip(left_out[server])


@pytest.mark.parametrize("server", SERVERS)
def test_rows_load_and_are_as_many_as_said(server):
    rows, tasks = rows_of(server), tasks_of(server)
    assert len(tasks) == len(rows) == 30 and all(row["servers"] == [server] for row in rows)
    assert sum("state_check" in row for row in rows) >= LEAST_CHANGES[server]
    assert sum(row["calls"] >= 2 for row in rows) >= 10
    ids = {row["task_id"]: row for row in rows}
    unknown = [row for row in rows if row.get("answer", "") is None]
    assert 2 <= len(unknown) <= 3 and all(ids[row["twin"]]["answer"] is not None for row in unknown)


def test_ids_and_questions_are_unique():
    rows = [row for server in SERVERS for row in rows_of(server)]
    assert len({row["task_id"] for row in rows}) == len({row["question"].casefold() for row in rows}) == len(rows)


@pytest.mark.parametrize("server", SERVERS)
def test_calls_are_those_that_prove_the_answer(server):
    for row in rows_of(server):
        assert row["calls"] == len(row["proof"]) and set(row) >= {"task_id", "question", "servers", "calls", "proof"}, (
            row["task_id"]
        )
        assert ("answer" in row) != ("state_check" in row), row["task_id"]
        if check := row.get("state_check"):
            assert (
                check["write_tool"] == row["proof"][-1]["tool"]
                and [c["tool"] for c in row["proof"]].count(check["write_tool"]) == 1
            ), row["task_id"]


@pytest.mark.parametrize("server", SERVERS)
def test_counted_answers_agree_with_the_content(server):
    derived = {int(row["task_id"][-2:]): values_of(row) for row in rows_of(server) if row.get("derived")}
    computed = ANSWERS[server]()
    assert derived.keys() == computed.keys()
    for number, values in derived.items():
        found = computed[number]
        if isinstance(found, set):
            assert found == set(values), number
        else:
            assert (
                (found if isinstance(found, list) else [found]) == pytest.approx(values)
                if all(isinstance(v, (int, float)) for v in values)
                else (found if isinstance(found, list) else [found]) == values
            ), number


@pytest.mark.parametrize("day", ["2025-01-15", "2025-07-15", "2026-03-29", "2026-11-01"])
def test_answers_about_time_do_not_change_with_the_season(day):
    assert time(day) == time()


@pytest.mark.parametrize("server", SERVERS)
def test_a_person_asks(specs, left_out, server):
    needs(left_out, server)

    async def tools_of():
        async with Pool({server: specs[server]}) as pool, await pool.lease([server]) as lease:
            return lease.tools(server)

    tools = anyio.run(tools_of)
    arguments = {
        name
        for tool in tools.values()
        for name in tool.input_schema.get("properties", {})
        if "_" in name or re.search("[a-z][A-Z]", name)
    }
    names = [name.casefold() for name in {*tools, *arguments}]
    for row in rows_of(server):
        question = row["question"].casefold()
        said = [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", question)]
        assert not said and not re.search(r"\b(steps?|tools?|select|sql|query|json file)\b", question), (
            row["question"],
            said,
        )
        assert len(row["question"].split()) <= 30, row["question"]


@pytest.mark.parametrize("server", SERVERS)
def test_every_answer_on_the_real_server(specs, left_out, server):
    needs(left_out, server)

    async def play():
        with anyio.fail_after(400):
            async with Pool({server: specs[server]}) as pool:
                return await check_written(server, pool)

    wrong = anyio.run(play)
    assert not wrong, "\n".join(wrong)


def test_the_check_finds_a_wrong_answer(specs, left_out):
    needs(left_out, "sqlite")
    row = rows_of("sqlite")[1]
    changed = row | {"answer": "555-0999"}

    async def play():
        async with Pool({"sqlite": specs["sqlite"]}) as pool:
            return [await fault_of(pool, "sqlite", one, Task.from_row(one)) for one in (row, changed)]

    right, wrong = anyio.run(play)
    assert right == "" and "is not in the results" in wrong


def test_the_servers_as_desktop_clients_have_them(specs, left_out, scratch):
    needs(left_out, "motherduck")
    read = from_mcp_servers(write_servers_json(scratch / "file"))
    assert list(read) == list(SERVERS)
    assert {spec.template for spec in read.values() if spec.template} == {
        str((scratch / "file/content").resolve() / name) for name in ("filesystem", "git", "sqlite", "motherduck")
    }
    assert all(spec.isolation == specs[name].isolation for name, spec in read.items())


def test_content_is_made_the_same_each_time(specs, scratch):
    from make_content import git, make_git

    make_git(scratch / "again")

    def ids(folder):
        return {path.name: path.read_text() for path in sorted((folder / ".git/refs/heads").iterdir())}

    assert ids(scratch / "again") == ids(scratch / "made/content/git") and len(ids(scratch / "again")) == 3
    git(scratch / "again", "fsck")
