"The benchmark notebooks, small: they end, and write the figures they promise."
import json, shutil

import pytest
from conftest import ROOT, TINY, papermill, run

pytestmark = pytest.mark.last


@pytest.fixture
def run_folders():
    "Folders below outputs/ that begin with `tiny-` belong to this test."
    def remove(): [shutil.rmtree(f) for f in (ROOT/"outputs").glob("tiny-*")]
    remove(); yield; remove()


def test_quickstart(tmp_path, run_folders):
    parameters = {"seeds": 0, "settings": ",".join([*TINY, "evaluate.tasks=16"]), "fresh_clone": False, "test_suite": False,
                  "prefix": "tiny-", "results": tmp_path/"quickstart.json"}
    command = papermill("bench_quickstart.ipynb", tmp_path, parameters)
    command[command.index("--cwd") + 1] = str(ROOT)
    done = run(command, ROOT, timeout=600)
    assert done.returncode == 0, done.said[-3000:]
    found = json.loads((tmp_path/"quickstart.json").read_text())
    assert set(found) == {"made_by", "date", "device", "versions", "rows"}
    assert all({"id", "what", "value", "unit", "goal", "holds", "peer"} == set(row) for row in found["rows"])
    assert {"A1b", "A2a", "A2b", "A2c", "A3", "A4", "A6"} == {row["id"] for row in found["rows"]}
    assert all(row["holds"] for row in found["rows"] if row["id"] == "A4"), found["rows"]  # needs no training: known in advance
