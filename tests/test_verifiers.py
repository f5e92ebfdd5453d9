"verifiers plays the tasks and servers of this project."

from conftest import passed_beside


def test_its_rollout_gives_the_results_of_an_episode():
    passed_beside("verifiers")
