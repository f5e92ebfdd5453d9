"The cells of notebooks that nbdev_test leaves out as slow: each such notebook is run whole, in a process of its own."

import sys
from pathlib import Path

import pytest
from conftest import ROOT, needs, run

SLOW = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "nbs").glob("**/*.ipynb"))
    if '"#| slow\\n"' in path.read_text()
]


@pytest.mark.parametrize("notebook", SLOW)
def test_a_notebook_runs_with_its_slow_cells(notebook):
    if "vllm" in notebook:
        needs("vllm")
    done = run(
        [Path(sys.executable).with_name("nbdev_test"), "--path", notebook, "--n_workers", "1", "--flags", "slow"], ROOT
    )
    assert done.returncode == 0, done.said[-3000:]


def test_there_are_some():
    assert SLOW
