"""The command, as a new user has it: from an installed wheel, in an empty folder, with the server of the guides and by
the guides' own commands."""

import json, os, re, shlex, subprocess, sys, zipfile

import pytest
from test_docs import BOOKS, commands
from test_package import wheel  # noqa: F401

SMALL = "train.tasks_per_step=2,rollout.samples=2"
SHORTER = {
    "tasks": "--number 12 --minutes 1",
    "train": f"--warmstart 2 --steps 0 --set {SMALL}",
}  # what is given again counts


@pytest.fixture(scope="module")
def place(wheel, tmp_path_factory):  # noqa: F811
    "An empty folder with the guides' server, and the files of an installed copy."
    folder = tmp_path_factory.mktemp("new user")
    zipfile.ZipFile(wheel).extractall(folder / "site")  # all that installing a wheel of plain Python does
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "books_server.py").write_text(BOOKS)
    (folder / "servers.json").write_text(
        json.dumps(
            {
                "mcpServers": {
                    "books": {
                        "command": ".venv/bin/python",
                        "args": ["books_server.py"],
                        "cwd": ".",
                        "isolation": "process",
                    }
                }
            }
        )
    )
    return folder


def said(folder, *words, code=0) -> str:
    """What the command says; it ends with this exit status, and shows no traceback. As for an installed script, Python
    does not look into the working folder by itself."""
    environment = os.environ | {"PYTHONPATH": str(folder / "site"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mcp_grpo.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code and "Traceback" not in done.stderr, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def guide_commands() -> list[list[str]]:
    "The words of the guides' commands, in order, those of serving and login left out."
    words = [
        shlex.split(command)
        for page, command in commands()
        if page in ("servers", "tasks") and re.match(r"\.venv/bin/mcp-grpo (?!serve|login)", command)
    ]
    return [given[1:] for given in words]


def test_the_guides_commands_lead_from_a_server_to_a_policy(place):
    told = {}
    for words in guide_commands():
        told[words[0]] = said(place, *words, *shlex.split(SHORTER.get(words[0], "")))
    assert list(told) == ["call", "doctor", "tasks", "check", "train", "show", "view", "compare"]
    assert (
        told["call"].strip() == "1815" and "3 tools after" in told["doctor"] and "No problem found." in told["doctor"]
    )
    assert "tasks to learn from" in told["tasks"] and "books: " in (place / "tasks/report.md").read_text()
    assert re.search(r"train.json: (\d+) of \1 tasks are solved", told["check"])
    assert (
        re.search(r"2 supervised steps on \d+ demonstrations", told["train"])
        and "so the figures are those of the warm start" in told["train"]
        and "IPKernelApp" not in told["train"]
    )
    assert (place / "outputs/books/model/model.safetensors").is_file() and (
        place / "outputs/books/report.html"
    ).is_file()
    assert "policy wrote" in told["show"] and "difference:" in told["compare"]
    assert (
        "books.html: a page of" in told["view"] and '"columns":["logprob","mask"]' in (place / "books.html").read_text()
    )
    assert "already holds a run" in said(place, "train", "--run", "books", code=1)

    stopped = said(
        place,
        "train",
        "--servers",
        "servers.json",
        "--tasks",
        "tasks",
        "--run",
        "cold",
        "--set",
        f"rollout.tools_as=compact,{SMALL},rollout.max_new_tokens=2",
        code=1,
    )
    assert (
        re.search("in none of 1[67] groups do the episodes earn different rewards", stopped)
        and "mcp-grpo warmstart" in stopped
    )
    assert "100.0%" in said(
        place, "evaluate", "oracle", "--servers", "servers.json", "--tasks", "tasks/validation.json", "--rounds", "2"
    )
    assert json.loads((place / "outputs/leaderboard.json").read_text())[0]["pass^2"] == 1


def test_check_says_why_a_task_fails(place):
    truth = {
        "task_id": "gone",
        "success": {"kind": "answer", "values": ["1815"]},
        "tool_sequence": [{"server": "books", "tool": "search", "params": {"title": "Emmma"}}],
    }
    row = {
        "prompt": [{"role": "user", "content": "When did Emma appear?"}],
        "reward_spec": {"ground_truth": truth},
        "extra_info": {"all_tools_of": ["books"]},
    }
    (place / "mine").mkdir()
    for name in ("train", "validation"):
        (place / f"mine/{name}.json").write_text(json.dumps([row]))
    found = said(place, "check", "--servers", "servers.json", "--tasks", "mine", code=1)
    assert (
        'called books.search({"title": "Emmma"}) -> ok: unknown title' in found
        and 'wanted: ["1815"]' in found
        and "0 of 1 tasks" in found
    )

    check = {
        "server": "books",
        "tool": "read_note",
        "params": {"title": "Emma"},
        "write_tool": "note",
        "function": "own_check:kept",
    }
    truth = {
        "task_id": "kept",
        "success": {"kind": "state"},
        "state_check": check,
        "tool_sequence": [{"server": "books", "tool": "note", "params": {"title": "Emma", "text": "read it"}}],
    }
    row |= {"prompt": [{"role": "user", "content": "Note of Emma: read it."}], "reward_spec": {"ground_truth": truth}}
    (place / "own_check.py").write_text('def kept(before, after): return (before, after) == ("no note", "read it")\n')
    (place / "mine/kept.json").write_text(json.dumps([row]))
    assert "1 of 1 tasks" in said(
        place, "check", "--servers", "servers.json", "--tasks", "mine/kept.json", "--heldout", "mine/kept.json"
    )


def test_a_step_is_measured_and_nothing_is_kept(place):
    before = {path.name for path in place.iterdir()}
    told = said(place, "profile", "--steps", "1", "--set", SMALL, "--trace", "trace.json")
    assert all(words in told for words in ("generation", "learning", "largest memory during the update", "operator"))
    assert {path.name for path in place.iterdir()} == before | {"trace.json"}


def test_the_monitor_without_a_run(place):
    assert re.search("no run on|running on", said(place, "monitor", "--once"))
