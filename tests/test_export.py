"What one policy did is written for other programs, and teaches another policy."

import json
import os
import subprocess
import sys
from pathlib import Path

import atif
from conftest import ROOT

from mcp_grpo.config import asset


def said(folder: Path, *words) -> str:
    "Run a command of the package in a folder, and return what it prints."
    done = subprocess.run(
        [sys.executable, "-m", "mcp_grpo.cli", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exported_successes_teach_tasks_that_name_no_calls(tmp_path):
    tasks = asset("tasks/train.json")
    said(tmp_path, "evaluate", "oracle", "--tasks", tasks, "--set", "evaluate.tasks=12")
    [place] = (tmp_path / "outputs/evaluations").iterdir()
    told = said(tmp_path, "export", place, "--successes", "--out", "taught.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "taught.jsonl").read_text().splitlines()]
    assert f"taught.jsonl: {len(rows)} episodes" in told and len(rows) >= 10
    said(tmp_path, "export", place, "--as", "atif")
    for line in (place / "atif.jsonl").read_text().splitlines():
        atif.Trajectory.model_validate_json(line)

    bare = json.loads(Path(tasks).read_text())
    for row in bare:
        row["reward_spec"]["ground_truth"]["tool_sequence"] = []
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    learnt = said(
        tmp_path,
        "warmstart",
        "--tasks",
        "bare.json",
        "--heldout",
        asset("tasks/validation.json"),
        "--episodes",
        "taught.jsonl",
        "--steps",
        2,
        "--run",
        "small",
        "--set",
        "evaluate.tasks=4,train.tasks_per_step=8",
    )
    assert f"2 supervised steps on {len(rows)} demonstrations" in learnt, learnt
    assert (tmp_path / "outputs/small/model/config.json").is_file()
