"""What several tests need: the repository, a short run, a notebook run in a folder of its own, optional packages and
third-party servers."""

import contextlib, importlib.util, json, os, subprocess, sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[1]
for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(name, None)  # of the make that runs the tests; they start some of their own
for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE"):
    os.environ.pop(name, None)  # no test's run is tracked by accident
TINY = ["train.steps=2", "train.tasks_per_step=2", "rollout.samples=2", "evaluate.tasks=6"]  # a run of seconds


def papermill(notebook: str, folder: Path, parameters: dict) -> list:
    "The command that runs an experiment in `folder`."
    pairs = [word for k, v in parameters.items() for word in ("-p", k, str(v))]
    return [
        sys.executable,
        "-m",
        "papermill",
        str(ROOT / "experiments" / notebook),
        str(folder / notebook),
        "--no-progress-bar",
        "--cwd",
        str(folder),
        "--stdout-file",
        str(folder / "stdout"),
        "--stderr-file",
        str(folder / "stderr"),
        *pairs,
    ]


def train_command(folder: Path, parameters: dict, overrides=()) -> list:
    "The command that runs the training notebook with `parameters`; results go below `folder`."
    data = {"data.heldout": ROOT / "data/processed/validation.json"}
    given = [f"{k}={v}" for k, v in data.items()] + list(overrides)
    parameters = {
        "mode": "cpu",
        "run": "test",
        "tasks": str(ROOT / "data/processed/train.json"),
        "overrides": ",".join(given),
    } | parameters
    return papermill("train.ipynb", folder, parameters)


def run(command: list, folder: Path, timeout=3600, env: dict | None = None):
    """The finished process, with what it said as `.said`. The time limit is for a process that hangs: it leaves room
    for a machine that is busy."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env=env)
    done.said = done.stdout + done.stderr
    return done


def commands(processes: list[psutil.Process]) -> list[str]:
    "The command lines of processes, without those that have ended meanwhile."
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return found


def benchmark(name: str, folder: Path, parameters: dict, kept=()) -> list:
    "The rows that a benchmark run in the repository writes beside those it `kept`; they are as they should be."
    results = folder / f"{name}.json"
    if kept:
        results.write_text(json.dumps({"rows": kept}))
    command = papermill(f"bench_{name}.ipynb", folder, parameters | {"results": results})
    command[command.index("--cwd") + 1] = str(ROOT)
    done = run(command, ROOT)
    assert done.returncode == 0, done.said[-3000:]
    found = json.loads(results.read_text())
    assert set(found) == {"made_by", "date", "device", "versions", "rows"} and all(row in found["rows"] for row in kept)
    assert all({"id", "what", "value", "unit", "goal", "holds", "peer"} == set(row) for row in found["rows"])
    assert not [row for row in found["rows"] if row["goal"].startswith("(")], "a row without a goal cannot fail"
    return found["rows"]


def needs(package: str) -> None:
    """Skip a test, or a module of tests, without an optional package; where `make full` has installed all of them, it
    fails instead."""
    if importlib.util.find_spec(package):
        return
    if (Path(sys.prefix) / ".ready-full").exists():
        raise ModuleNotFoundError(f"{package} is missing, though make full has been here.")
    pytest.skip(f"{package} is not installed; make full installs it", allow_module_level=True)


def third_party_part(name: str = "") -> str:
    "Install a part of the third-party servers, or all; returns why it was left out, if it was."
    done = subprocess.run(
        [ROOT / "requirements/third-party", *([name] if name else [])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    skipped = ROOT / f".servers/{name}.skipped"
    return skipped.read_text().strip() if name and skipped.exists() else ""


def passed_beside(package: str) -> None:
    """Run tests/with_PACKAGE.py where another trainer's package is installed, which wants other versions than this
    project; skip it where the package cannot be had."""
    if why := third_party_part(package):
        pytest.skip(why)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    python, tests = ROOT / f".servers/{package}/bin/python", ROOT / f"tests/with_{package}.py"
    command = [python, "-m", "pytest", tests, "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = run(command, ROOT, env=clean | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.said[-5000:]


@pytest.fixture
def run_notebook(tmp_path):
    "Run the training notebook in a folder of its own."
    return lambda overrides=(), **parameters: run(train_command(tmp_path, parameters, overrides), tmp_path)


def pytest_collection_modifyitems(items):
    "What is marked `last` runs last: the benchmarks, which take longest."
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
