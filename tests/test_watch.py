"A run is watched from its folder, and every number that it writes is in the table of metrics."

import subprocess
import sys

from conftest import ROOT
from mcp_grpo import Run
from mcp_grpo.observe.track import read_lines
from mcp_grpo.train.metrics import METRICS


def test_every_metric_of_a_run_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = set(METRICS) | {"step", "seconds"}
    for name, settings in {"plain": {}, "value": {"advantage": "gae"}}.items():
        with Run(
            name=name, steps=1, tasks_per_step=2, samples=4, evaluate_tasks=2, say=lambda line: None, **settings
        ) as run:
            [step] = run.train()
            folder = run.folder
        [line] = read_lines(folder / "metrics.jsonl")
        assert set(line) <= known, set(line) - known
    shown = subprocess.run(
        [sys.executable, "-m", "mcp_grpo.cli", "watch", str(folder), "--once"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert shown.returncode == 0, shown.stderr
    assert "1 of 1 steps" in shown.stdout and "tokens_sampled" in shown.stdout and "Traceback" not in shown.stderr
