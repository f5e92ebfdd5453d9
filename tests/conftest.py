"What several tests need: the repository, a task file cut short, and a notebook run in a folder of its own."
import json, subprocess, sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = ["train.steps=2", "train.tasks_per_step=2", "rollout.samples=2", "evaluate.tasks=6"]  # a run of seconds


def papermill_command(folder: Path, parameters: dict, overrides=()) -> list:
    "The command that runs the training notebook with `parameters`; results go below `folder`."
    data = {"data.heldout": ROOT/"data/processed/validation.json"}
    given = [f"{k}={v}" for k, v in data.items()] + list(overrides)
    parameters = {"mode": "cpu", "run": "test", "tasks": str(ROOT/"data/processed/train.json"), "overrides": ",".join(given)} | parameters
    pairs = [word for k, v in parameters.items() for word in ("-p", k, str(v))]
    notebook, out = ROOT/"experiments/train.ipynb", folder/"train.ipynb"
    return [str(Path(sys.executable).with_name("papermill")), str(notebook), str(out), "--no-progress-bar", "--cwd", str(folder),
            "--stdout-file", str(folder/"stdout"), "--stderr-file", str(folder/"stderr"), *pairs]


@pytest.fixture
def run_notebook(tmp_path):
    "Run the training notebook; gives the finished process, with what it said as `.said`."
    def run(overrides=(), timeout=300, **parameters):
        done = subprocess.run(papermill_command(tmp_path, parameters, overrides), cwd=tmp_path, capture_output=True, text=True, timeout=timeout)
        done.said = done.stdout + done.stderr
        return done
    return run


@pytest.fixture
def rows():
    "The training rows, as JSON."
    return json.loads((ROOT/"data/processed/train.json").read_text())
