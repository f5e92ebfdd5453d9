"OpenEnv plays the tasks and servers of this project."

from beyond import differing
from conftest import passed_beside


def test_its_clients_and_server_give_the_results_of_an_episode():
    passed_beside("openenv")


def test_the_comparison_finds_a_difference():
    played = [("oracle", "t1", ["12"], 1.0), ("wrong", "t1", ["12"], 0.35)]
    assert not differing(played, list(map(list, played)))
    for changed in (("wrong", "t1", ["13"], 0.35), ("wrong", "t1", ["12"], None)):
        assert differing(played, [played[0], changed]) == ["wrong t1"]
    assert differing(played, played[:1]) == ["wrong t1"]
