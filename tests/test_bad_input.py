"Wrong input to a run: one sentence, before a model is loaded and a folder is made."

import json, os, re, subprocess, sys

import pytest
from conftest import ROOT, run, train_command

from mcp_grpo import Run
from mcp_grpo.errors import UserError


def spoil(row, where):
    "A row with one thing wrong."
    if where == "no id":
        del row["reward_spec"]["ground_truth"]["task_id"]
    if where == "prompt":
        row["prompt"] = "what is the price?"
    if where == "server":
        row["extra_info"]["tools"][0]["server"] = "polygone"
    if where == "tool":
        row["extra_info"]["tools"][0]["tool"] += "s"
    if where == "argument":
        row["extra_info"]["tools"][0]["arguments"]["day"] = "dya"
    if where == "state":
        row["reward_spec"]["ground_truth"]["state_check"]["tool"] += "s"
    if where == "facts":
        row["reward_spec"]["ground_truth"]["final_reference"] = {"answer_text": "", "facts": {"price": "412.309"}}
    if where in ("server", "tool"):
        row["reward_spec"]["ground_truth"]["tool_sequence"] = []  # so that only the offer is wrong
    return row


SETTINGS = [  # arguments of a run, overrides, what the sentence says
    ({"mode": "gpux"}, [], r"mode 'gpux' does not exist; modes that exist: cpu"),
    ({}, ["train.stepps=3"], r"train\.stepps: there is no such field; did you mean train\.steps"),
    ({}, ["train.steps=many"], r"train\.steps: 'many' should be a valid integer"),
    ({"steps": -1}, [], r"train\.steps: -1 should be greater than or equal to 0"),
    ({"name": "a/b"}, [], r"'a/b' cannot name a folder"),
    ({}, ["servers.names=[polygon,fmp,slakc]"], r"slakc.*slack"),
    (
        {},
        ["servers.names=[polygon,slack]"],
        r"row \d+.*fmp.*is not configured; it is an embedded one: add it to servers.names",
    ),
    ({}, ["servers.file=none.json"], r"server file 'none\.json' does not exist"),
    ({}, ["train.advantage=gripo"], r"train\.advantage: 'gripo' is not one of .*grpo"),
    ({}, ["train.loss=ppoo"], r"train\.loss: 'ppoo' is not one of"),
    (
        {},
        ["train.family_weight={lookup: 0, two_lookups: 0, chain: 0, post: 0, unanswerable: 0}"],
        r"every family has the weight 0",
    ),
    ({}, ["train.family_weight={lokup: 2}"], r"no task is of the family 'lokup'"),
    ({}, ["servers.world_seed=1"], r"task .*: its own tool calls do not give its answer; .*world_seed"),
    ({"resume": "no"}, [], r"resume: 'no' is neither True nor False"),
    ({"tasks": "none.json"}, [], r"tasks: none\.json does not exist"),
    ({}, ["model.weights=lora", "model.lora.targets=q_prj"], r"model\.lora\.targets: .*q_prj"),
    ({}, ["rollout.max_tokens=2000"], r"rollout\.max_tokens is 2000, and the model 'tiny' reads at most 1024 tokens"),
    ({}, ["rollout.max_tokens=64"], r"the prompt of task .* has \d+ tokens, and an episode may have 64"),
    ({"name": "none", "resume": True}, [], r"there is no run 'none' to go on with"),
]
ROWS = [
    ("no id", r"row 2.*task_id"),
    ("prompt", r"row 2.*prompt"),
    ("server", r"row 2.*'polygone' is not configured; did you mean polygon"),
    ("tool", r"row 2.*has no tool"),
    ("argument", r"row 2.*has no argument 'dya'"),
    (
        "state",
        r"row 2.*state_check: .*has no tool 'slack_get_channel_historys'; did you mean slack_get_channel_history",
    ),
    ("facts", r"its own tool calls do not give its answer"),
]


NOT_JSON = ("not JSON", r"tasks\.json is not valid JSON")
CASES = [*SETTINGS, *ROWS, NOT_JSON]


def given(case, folder):
    "The arguments of a run that hold one wrong input."
    if len(case) == 3:
        arguments, overrides = case[:2]
    else:
        rows = json.loads((ROOT / "data/processed/train.json").read_text())
        if case[0] == "state":
            rows = [row for row in rows if row["reward_spec"]["ground_truth"]["state_check"]]
        text = '[{"prompt": ' if case is NOT_JSON else json.dumps([*rows[:2], spoil(rows[2], case[0]), *rows[3:5]])
        (folder / "tasks.json").write_text(text)
        arguments, overrides = {"tasks": folder / "tasks.json"}, []
    if not arguments.get("resume"):
        data = ROOT / "data/processed"
        arguments = {"tasks": data / "train.json", "heldout": data / "validation.json"} | arguments
    return {"mode": "cpu", "name": "test"} | arguments | {"overrides": ",".join(overrides)}


@pytest.mark.parametrize("case", CASES, ids=[str(c[-1])[:40] for c in CASES])
def test_wrong_input_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=case[-1]):  # `check` loads no model
        with Run(**given(case, tmp_path), say=lambda line: None) as training:
            training.check()
    assert not (tmp_path / "outputs").exists()


NOTEBOOK = [  # parameters and overrides of the notebook
    ({"step": 3}, [], r"step: there is no such setting; did you mean steps"),
    ({"resume": "no"}, [], r"resume: 'no' is neither True nor False"),
    ({}, ["train.loss=ppoo"], r"train\.loss: 'ppoo' is not one of"),
]


@pytest.mark.parametrize("parameters, overrides, sentence", NOTEBOOK, ids=["step", "resume", "loss"])
def test_the_notebook_ends_with_the_sentence(parameters, overrides, sentence, tmp_path):
    done = run(train_command(tmp_path, parameters, overrides), tmp_path)
    assert done.returncode != 0
    assert re.search(sentence, done.said.strip().splitlines()[-1]), done.said[-500:]
    assert not (tmp_path / "outputs").exists()
    cells = json.loads((tmp_path / "train.ipynb").read_text())["cells"]
    loads = [c for c in cells if "training.evaluate()" in "".join(c["source"])]
    assert loads and all(c["execution_count"] is None for c in loads)  # it stopped before the model


def test_missing_model(run_notebook, tmp_path):
    done = run_notebook(model=str(tmp_path / "no-model"))
    assert done.returncode != 0 and "no-model" in done.said.strip().splitlines()[-1]
    assert not (tmp_path / "outputs").exists()


def test_outputs_that_cannot_be_written(run_notebook, tmp_path):
    (tmp_path / "outputs").write_text("a file")
    done = run_notebook()
    assert done.returncode != 0 and "outputs/test cannot be written, because" in done.said.strip().splitlines()[-1]


def test_a_dry_run_checks_and_stops(run_notebook, tmp_path):
    done = run_notebook(dry_run=True)
    assert done.returncode == 0, done.said
    assert "this was a dry run" in (tmp_path / "stdout").read_text()
    assert not (tmp_path / "outputs").exists()


def test_a_run_is_never_written_over(run_notebook, tmp_path):
    (tmp_path / "outputs/test").mkdir(parents=True)
    (tmp_path / "outputs/test/metrics.jsonl").write_text('{"step": 1}\n')
    done = run_notebook()
    assert done.returncode != 0 and "already holds a run" in done.said.strip().splitlines()[-1]
    assert (tmp_path / "outputs/test/metrics.jsonl").read_text() == '{"step": 1}\n'


def test_make_says_what_bench_needs():
    done = subprocess.run(
        ["make", "bench"], cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NAME": "of-this-machine"}
    )
    assert done.returncode != 0 and "make bench NAME=" in done.stdout + done.stderr


def test_make_keeps_a_finished_run(tmp_path):
    finished = tmp_path / "outputs/mine"
    finished.mkdir(parents=True)
    (finished / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / ".venv").symlink_to(sys.prefix)

    def make(*words):
        return subprocess.run(
            ["make", "-f", ROOT / "Makefile", "-o", ".venv/.ready", "train", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    done = make("RUN=mine")
    assert done.returncode == 2 and "'mine' already holds a run" in done.stdout + done.stderr
    assert [path.name for path in finished.iterdir()] == ["metrics.jsonl"]
    done = make("RUN=mein", "ARGS=--resume")
    assert done.returncode == 2 and "there is no run 'mein' to go on with" in done.stdout + done.stderr
    assert not (tmp_path / "outputs/mein").exists()
