"What is installed with pip: everything the main job needs, wherever it is started."

import os, re, shutil, subprocess, sys, zipfile
from pathlib import Path

import pytest
from conftest import ROOT

from mcp_grpo.config import asset
from mcp_grpo.task import read_tasks

TASK_FILES = [
    f"{folder}/{name}.json"
    for folder in ("data/processed", "mcp_grpo/assets/tasks")
    for name in ("train", "validation")
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "A wheel of the package, built from a copy that no earlier build has touched."
    copy = tmp_path_factory.mktemp("source")
    for folder in ("mcp_grpo", "experiments"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", copy / "dist", copy],
        check=True,
        capture_output=True,
    )
    return next((copy / "dist").glob("*.whl"))


def test_wheel_holds_modules_assets_and_experiments(wheel):
    there = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("mcp_grpo/")}
    here = {
        p.relative_to(ROOT).as_posix()
        for p in (ROOT / "mcp_grpo").glob("**/*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    beside = {
        f"mcp_grpo/{p.relative_to(ROOT).as_posix()}"
        for pattern in ("*.ipynb", "configs/*")
        for p in (ROOT / "experiments").glob(pattern)
    }
    assert there == here | beside
    assert {
        "mcp_grpo/assets/tiny/model.safetensors",
        "mcp_grpo/assets/tasks/train.json",
        "mcp_grpo/train/trainer.py",
    } <= there
    assert {"mcp_grpo/experiments/train.ipynb", "mcp_grpo/experiments/configs/cpu.yaml"} <= there


def test_installed_copy_checks_a_run_in_an_empty_folder(wheel, tmp_path):
    site, folder = tmp_path / "site", tmp_path / "empty"
    folder.mkdir()
    zipfile.ZipFile(wheel).extractall(site)  # all that installing a wheel of plain Python does
    environment = os.environ | {"PYTHONPATH": str(site)}
    found = subprocess.run(
        [sys.executable, "-c", "import mcp_grpo; print(mcp_grpo.__file__)"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    ).stdout
    assert Path(found.strip()).is_relative_to(site)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("papermill"),
            site / "mcp_grpo/experiments/train.ipynb",
            "train.ipynb",
            "-p",
            "dry_run",
            "True",
            "--no-progress-bar",
            "--log-output",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        re.search(r"64 tasks to learn from \(.*assets/tasks/train.json\), 64 held out", done.stderr)
        and "this was a dry run" in done.stderr
    )


def test_make_data_changes_nothing(tmp_path):
    subprocess.run(["make", "data", f"DATA_TO={tmp_path}"], cwd=ROOT, check=True, capture_output=True)
    made = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.glob("**/*.json")}
    assert len(made) == 6  # four task files, and the schemas of their rows and of server files
    assert not [str(name) for name, text in made.items() if text != (ROOT / name).read_text()], "run `make data`"


def test_small_task_files_are_part_of_the_large_ones():
    for name in ("train.json", "validation.json"):
        small, large = read_tasks(ROOT / "mcp_grpo/assets/tasks" / name), read_tasks(ROOT / "data/processed" / name)
        assert len(small) == 64 and all(task in large for task in small)


@pytest.mark.parametrize("name", TASK_FILES)
def test_prompts_are_short(name):
    from transformers import AutoTokenizer

    from mcp_grpo.rollout.chat import Chat

    chat = Chat(AutoTokenizer.from_pretrained(asset("tiny")))
    lengths = {task.task_id: len(chat.prompt_ids(task.prompt)) for task in read_tasks(ROOT / name)}
    longest = max(lengths, key=lengths.get)
    assert 50 < lengths[longest] <= 200, f"{longest}: {lengths[longest]} tokens"
