"SkyRL's own generator plays the tasks of this project, with a policy behind a vLLM server on this processor."

import pytest
from beyond import chosen_tasks
from conftest import needs
from skyrl_generator import FAULT, PYTHON, both, differing, run_skyrl

pytestmark = pytest.mark.skipif(
    not (PYTHON.parents[1] / ".ready").exists(), reason="SkyRL's trainer is not installed; make skyrl installs it"
)


@pytest.fixture(scope="module")
def played():
    "The generator's output for some tasks, and the outcomes of episodes here with the same turns."
    needs("vllm")
    return both(chosen_tasks(16))


def test_its_episodes_are_sound_and_have_the_rewards_of_this_project(played):
    output, own = played
    assert len(own) == len(output["rewards"]) == 16 and FAULT not in map(sum, output["rewards"])
    assert not differing(output, own)


def test_its_trainer_accepts_the_command_of_the_guide():
    found = run_skyrl("guide")
    assert found["main"] and found["model"] == "Qwen/Qwen3-0.6B"
    assert [path.rpartition("/")[2] for path in found["data"]] == ["train.json"]
