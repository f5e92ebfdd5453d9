"OpenEnv plays the tasks and servers of this project."

from conftest import passed_beside


def test_its_clients_and_server_give_the_results_of_an_episode():
    passed_beside("openenv")
