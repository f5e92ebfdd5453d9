"SkyRL's own generator plays the tasks of this project, with a policy behind a vLLM server on this processor."

import pytest
from beyond import chosen_tasks
from conftest import needs
from skyrl_generator import PYTHON, both, differing, run_skyrl

pytestmark = pytest.mark.skipif(
    not (PYTHON.parents[1] / ".ready").exists(), reason="SkyRL's trainer is not installed; make skyrl installs it"
)


def test_its_episodes_are_those_of_this_project():
    needs("vllm")
    output, own = both(chosen_tasks(16))
    assert len(own) == 16 and not differing(output, own)
    assert any(one.outcome.events for one in own) and {0.0, 1.0} <= {round(one.outcome.reward) for one in own}


def test_its_trainer_accepts_the_command_of_the_guide():
    found = run_skyrl("guide")
    assert found["main"] and found["model"] == "Qwen/Qwen3-0.6B"
    assert [path.rpartition("/")[2] for path in found["data"]] == ["train.json"]
