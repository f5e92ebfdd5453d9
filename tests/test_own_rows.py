"Rows written by hand: what they may say, and how a policy is measured on them."

import json, os, re, sys

import anyio
import pytest
from conftest import ROOT, run

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import from_mcp_servers
from mcp_grpo.config import load_config
from mcp_grpo.env.action import Action, Call, final_answer
from mcp_grpo.env.offer import complete_tasks
from mcp_grpo.env.scripted import Replay, play
from mcp_grpo.compare import compare_episodes, evaluate_policy, rounds_table
from mcp_grpo.rollout.trajectory import read_trajectories
from mcp_grpo.task import TaskError, read_tasks
from mcp_grpo.tasks.explore import write_explored

CHECK = {
    "server": "helpdesk",
    "tool": "get_ticket",
    "params": {"ticket_id": "T5429"},
    "write_tool": "assign_ticket",
    "path": "agent_id",
    "equals": "A3",
}
GIVE = {
    "question": "Give T5429 to Jana Brandt.",
    "servers": ["helpdesk"],
    "state_check": CHECK,
    "family": "assign",
    "calls": 2,
}
MINE = [
    {
        "question": "In which room is ticket T5408?",
        "answer": "R213",
        "servers": ["helpdesk"],
        "family": "lookup",
        "calls": 1,
    },
    {
        "question": "Which id has the agent Mara Lind?",
        "answer": "A2",
        "servers": ["helpdesk"],
        "family": "lookup",
        "calls": 1,
    },
    {"question": "Who is the agent of T9999?", "answer": None, "servers": ["helpdesk"]},
    GIVE,
]


def files(folder, rows=MINE):
    "A folder with the helpdesk's description and rows written by hand."
    server = {"command": sys.executable, "args": [str(ROOT / "tests/servers/helpdesk.py")], "isolation": "process"}
    (folder / "servers.json").write_text(json.dumps({"mcpServers": {"helpdesk": server}}))
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def turns(*calls):
    "A policy that makes calls, each in its own turn, and then says that it is done."
    return lambda task: Replay(
        [*(Action([Call(name, arguments)]) for name, arguments in calls), final_answer(["done"])]
    )


def test_a_row_that_asks_for_a_change_is_scored_by_the_state(tmp_path):
    place = files(tmp_path)
    look, give = ("find_agent", {"name": "Jana Brandt"}), ("assign_ticket", {"ticket_id": "T5429", "agent_id": "A3"})
    other = ("assign_ticket", {"ticket_id": "T5429", "agent_id": "A2"})

    async def played():
        async with Pool(from_mcp_servers(place / "servers.json")) as pool:
            task = (await complete_tasks(read_tasks(place / "mine.jsonl"), pool, "mine.jsonl"))[-1]
            assert (task.success["kind"], task.family, task.calls, task.max_turns) == ("state", "assign", 2, 8)
            return [
                (await play(turns(*calls), task, pool)).success
                for calls in ([look, give], [give], [look], [other], [other, give])
            ]

    assert anyio.run(played) == [True, True, False, False, False]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"tool": "get_tickets"}, "state_check.tool: the server 'helpdesk' has no tool 'get_tickets'"),
        ({"write_tool": "assign"}, "state_check.write_tool: the server 'helpdesk' has no tool 'assign'"),
        ({"params": {"ticket": "T5429"}}, "state_check.params.ticket: the tool 'get_ticket' has no argument 'ticket'"),
    ],
)
def test_a_state_check_of_unknown_tools_is_refused_before_an_evaluation(change, said, tmp_path):
    place = files(tmp_path, [GIVE | {"state_check": CHECK | change}])
    with pytest.raises(TaskError, match="mine.jsonl row 0: " + said.replace(".", r"\.")):
        evaluate_policy("oracle", str(place / "mine.jsonl"), str(place / "servers.json"), folder=tmp_path)


@pytest.mark.parametrize(
    "row, field",
    [
        (MINE[0] | {"answer": float("nan")}, "answer"),
        (MINE[0] | {"answer": [1, float("inf")]}, "answer"),
        (GIVE | {"state_check": CHECK | {"equals": float("nan")}}, "state_check.equals"),
        (GIVE | {"state_check": CHECK | {"params": {"ticket_id": [float("nan")]}}}, "state_check.params.ticket_id[0]"),
    ],
)
def test_a_value_that_is_no_finite_number_is_refused(row, field, tmp_path):
    with pytest.raises(TaskError, match=re.escape(f"mine.jsonl row 4: {field}: ") + "(nan|inf) is not a finite number"):
        read_tasks(files(tmp_path, [*MINE, row]) / "mine.jsonl")


def test_success_is_told_by_family_and_by_number_of_calls(tmp_path):
    place = files(tmp_path)
    found, kept = evaluate_policy(
        "oracle", str(place / "mine.jsonl"), str(place / "servers.json"), folder=tmp_path
    )  # the oracle knows the answers, and no calls
    assert [row[:2] for row in rounds_table(found).rows] == [
        ["all", "4"],
        ["no family", "1"],
        ["assign", "1"],
        ["lookup", "2"],
        ["1 call", "2"],
        ["2 calls", "1"],
    ]
    summary = json.loads((kept / "summary.json").read_text())
    assert {calls: part["success"] for calls, part in summary["by_calls"].items()} == {"1": 1.0, "2": 0.0}
    episodes = read_trajectories(kept / "episodes.jsonl")
    assert [row[0] for row in compare_episodes(episodes, episodes)[0].rows] == [
        "all",
        "no family",
        "assign",
        "lookup",
        "1 call",
        "2 calls",
    ]


def command(folder, *words, code=0) -> str:
    "What `mcp-grpo` says in a folder."
    done = run(
        [sys.executable, "-m", "mcp_grpo.cli", *words],
        folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == code, f"{words}: {done.said[-3000:]}"
    return done.said


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    "A folder with rows written by hand, and with the tasks that exploring the helpdesk finds."
    place = files(tmp_path_factory.mktemp("helpdesk"))
    with Pool(from_mcp_servers(place / "servers.json")) as pool:
        write_explored(pool, place / "tasks", tasks=24, seconds=60, share=0.3, say=lambda line: None)
    return place


def test_rows_written_by_hand_are_held_out_beside_generated_tasks(explored):
    given = ("--servers", "servers.json", "--tasks", "tasks", "--heldout", "mine.jsonl")
    assert re.search(
        r"mine.jsonl: 0 of 0 tasks are solved by their own calls; 4 other tasks name no calls",
        command(explored, "check", *given),
    )
    told = command(
        explored,
        "train",
        *given,
        "--run",
        "mine",
        "--warmstart",
        "2",
        "--steps",
        "0",
        "--set",
        "rollout.tools_as=compact,train.tasks_per_step=2",
    )
    assert "4 held out" in told and "warmstart: heldout success" in told
    limits = load_config(str(explored / "outputs/mine/config.yaml")).rollout

    again = command(
        explored,
        "evaluate",
        "outputs/mine",
        "--servers",
        "servers.json",
        "--tasks",
        "mine.jsonl",
        "--set",
        "rollout.tools_as=compact",
    )
    assert re.search(r"^2 calls +1 ", again, re.M)
    for line in (explored / "outputs/evaluations").glob("*/episodes.jsonl").__next__().read_text().splitlines():
        assert len(json.loads(line)["ids"]) <= limits.max_tokens

    refused = command(explored, "evaluate", "tiny", "--servers", "servers.json", "--tasks", "mine.jsonl", code=1)
    assert re.search(
        r"no task names the calls that it needs.*add --set rollout.max_tokens=\d+,rollout.max_new_tokens=\d+", refused
    )
