"Results that cannot be written: refused before the work begins, and what was measured is not lost."

import os
import resource
import subprocess
import sys

import pytest
from mcp_grpo.files import WriteError
from mcp_grpo.observe.evaluate import keep_evaluation
from mcp_grpo.rollout.trajectory import read_trajectories
from conftest import ROOT

EPISODES = ROOT / "tests/data/trajectories.jsonl"


def full_disk():
    "Let this process write no more than 10 KB into any file, as on a disk that is nearly full."
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


@pytest.mark.parametrize("why", ["a file", "a full disk"])
@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "oracle", "--number", "3"],
        ["train", "--run", "x"],
        ["tasks", "--servers", "mcp.json", "--out", "outputs/t"],
    ],
)
def test_work_whose_result_cannot_be_written_does_not_begin(words, why, tmp_path):
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"fmp": {"server": "mcp_grpo.servers.fmp:make_server"}}}')
    if why == "a file":
        (tmp_path / "outputs").write_text("")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mcp_grpo.cli", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        preexec_fn=full_disk if why == "a full disk" else None,
    )
    [line] = done.stderr.strip().splitlines()
    assert done.returncode == 1 and "cannot be written" in line, line
    assert not done.stdout and not (tmp_path / "outputs").is_dir()


def test_what_was_measured_is_said_and_its_episodes_are_kept(tmp_path, monkeypatch):
    episodes = read_trajectories(EPISODES)
    (tmp_path / "outputs").write_text("")
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    with pytest.raises(WriteError, match="success .*% of [0-9]+ tasks; the episodes are in") as told:
        keep_evaluation("oracle", episodes, "tasks.json", tmp_path / "outputs")
    assert "\n" not in str(told.value)
    [kept] = (tmp_path / "spare").rglob("episodes.jsonl")
    assert read_trajectories(kept) == episodes
    monkeypatch.setattr("tempfile.tempdir", "/proc")
    with pytest.raises(WriteError, match="no room for the episodes in the temporary folder either"):
        keep_evaluation("oracle", episodes, "tasks.json", tmp_path / "outputs")
