"The benchmark notebooks, small: they end, and write the figures they promise."

import shutil

import pytest
from conftest import ROOT, TINY, benchmark

pytestmark = pytest.mark.last


@pytest.fixture
def run_folders():
    "Folders below outputs/ that begin with `tiny-` belong to this test."

    def remove():
        [shutil.rmtree(f) for f in (ROOT / "outputs").glob("tiny-*")]

    remove()
    yield
    remove()


def test_quickstart(tmp_path, run_folders):
    parameters = {"seeds": 0, "settings": ",".join([*TINY, "evaluate.tasks=16"]), "only": "A2,A4", "prefix": "tiny-"}
    rows = benchmark("quickstart", tmp_path, parameters)
    assert {"A1b", "A2a", "A2b", "A2c", "A3", "A4", "A6"} == {row["id"] for row in rows}
    assert all(row["holds"] for row in rows if row["id"] == "A4"), rows  # needs no training: known in advance


def test_tasks(tmp_path):
    rows = benchmark("tasks", tmp_path, {"only": "G8"})
    assert {"G8a", "G8b"} == {row["id"] for row in rows} and all(row["holds"] for row in rows), rows


def test_models(tmp_path):
    "A family of each way: in slots, with states, with sinks."
    rows = benchmark("models", tmp_path, {"only": "K1", "families": "llama,mamba2,qwen3_5_text,gpt_oss"})
    assert "K1a" in {row["id"] for row in rows} and all(row["holds"] for row in rows), rows


def test_beyond(tmp_path):
    "SkyRL and TRL here; OpenEnv and verifiers have tests of their own."
    rows = benchmark("beyond", tmp_path, {"tasks": 4, "only": "I6a,I6b"})
    assert {"I6a", "I6b"} == {row["id"] for row in rows} and all(row["holds"] for row in rows), rows


def test_beyond_of_others(tmp_path):
    "Files, episodes and engines: a tenth of them; servers of both eras have tests of their own."
    rows = benchmark("beyond", tmp_path, {"scale": 0.1, "only": "I2,I8,I9a"})
    assert {"I2a", "I2b", "I8a", "I8b", "I9a"} == {row["id"] for row in rows}
    assert not [row for row in rows if not row["holds"]]


def test_people(tmp_path):
    "A push to a hub: the whole benchmark takes a quarter of an hour."
    rows = {row["id"]: row for row in benchmark("people", tmp_path, {"scale": 0.1, "only": "H6"})}
    assert {"H6a", "H6b", "H6c"} == set(rows) and all(row["holds"] for row in rows.values()), rows
