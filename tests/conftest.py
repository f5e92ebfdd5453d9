"What several tests need: the repository, a task file cut short, and a notebook run in a folder of its own."
import json, os, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"): os.environ.pop(name, None)  # of the make that runs the tests; they start some of their own
TINY = ["train.steps=2", "train.tasks_per_step=2", "rollout.samples=2", "evaluate.tasks=6"]  # a run of seconds


def papermill(notebook: str, folder: Path, parameters: dict) -> list:
    "The command that runs an experiment in `folder`."
    pairs = [word for k, v in parameters.items() for word in ("-p", k, str(v))]
    return [str(Path(sys.executable).with_name("papermill")), str(ROOT/"experiments"/notebook), str(folder/notebook), "--no-progress-bar",
            "--cwd", str(folder), "--stdout-file", str(folder/"stdout"), "--stderr-file", str(folder/"stderr"), *pairs]


def train_command(folder: Path, parameters: dict, overrides=()) -> list:
    "The command that runs the training notebook with `parameters`; results go below `folder`."
    data = {"data.heldout": ROOT/"data/processed/validation.json"}
    given = [f"{k}={v}" for k, v in data.items()] + list(overrides)
    parameters = {"mode": "cpu", "run": "test", "tasks": str(ROOT/"data/processed/train.json"), "overrides": ",".join(given)} | parameters
    return papermill("train.ipynb", folder, parameters)


def run(command: list, folder: Path, timeout=300):
    "The finished process, with what it said as `.said`."
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout)
    done.said = done.stdout + done.stderr
    return done


def benchmark(name: str, folder: Path, parameters: dict, kept=()) -> list:
    "The rows that a benchmark run in the repository writes beside those it `kept`; they are as they should be."
    results = folder/f"{name}.json"
    if kept: results.write_text(json.dumps({"rows": kept}))
    command = papermill(f"bench_{name}.ipynb", folder, parameters | {"results": results})
    command[command.index("--cwd") + 1] = str(ROOT)
    done = run(command, ROOT, timeout=900)
    assert done.returncode == 0, done.said[-3000:]
    found = json.loads(results.read_text())
    assert set(found) == {"made_by", "date", "device", "versions", "rows"} and all(row in found["rows"] for row in kept)
    assert all({"id", "what", "value", "unit", "goal", "holds", "peer"} == set(row) for row in found["rows"])
    assert not [row for row in found["rows"] if row["goal"].startswith("(")], "a row without a goal cannot fail"
    return found["rows"]


@pytest.fixture
def run_notebook(tmp_path):
    "Run the training notebook in a folder of its own."
    return lambda overrides=(), **parameters: run(train_command(tmp_path, parameters, overrides), tmp_path)


def pytest_collection_modifyitems(items):
    "What is marked `last` runs last: the benchmarks, which take longest."
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
