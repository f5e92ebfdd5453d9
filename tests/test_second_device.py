"""The learner and the engine hf on a device that is not the processor (tests/second_device.py): nothing is mixed, and a
GPU would seldom be waited for."""

import json, sys

import pytest
from conftest import ROOT, run


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    done = run([sys.executable, str(ROOT / "tests/second_device.py")], tmp_path_factory.mktemp("second"))
    assert done.returncode == 0, done.said[-3000:]
    return json.loads(done.stdout)


def test_mixing_two_devices_raises(played):
    assert "given tensors of twin and of the processor" in played["mixed"]


def test_the_learner_is_the_same_on_another_device(played):
    for name, case in played["cases"].items():
        assert case["apart"] < 1e-6 and not case["metrics"], (name, case)
        assert case["resumed"] == 0, (name, "a checkpoint")
    assert played["warm start"] < 1e-6


def test_the_engine_says_the_same_on_another_device(played):
    assert played["engine"]["same"] and played["engine"]["turns"] == 19


def test_a_device_is_seldom_waited_for(played):
    assert played["engine"]["waits"] == 1, "a forward pass waits for its tokens, once"
    assert played["cases"]["plain"]["waits"] == 7, (
        "a step waits twice in transformers, and for the statistics, the gradient's norm, what moved, a count and what "
        "was learnt from each token"
    )
