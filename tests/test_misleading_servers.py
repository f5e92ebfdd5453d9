"Exploring servers whose results mislead: half of a list, a refusal in its place, values that change, others' ids."

import os
import random
import sys

import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.tasks.explore import Explored, explore_sync

PEOPLE = ["Ann Lee", "Bo Kral", "Cy Dun", "Di Fox", "Ed Gum", "Flo Hart"]
CITIES = ["Oslo", "Rome", "Bonn", "Lyon", "Oslo", "Rome"]
MEMBERS = {
    f"M{i}": {"member_id": f"M{i}", "name": name, "city": city}
    for i, (name, city) in enumerate(zip(PEOPLE, CITIES), 11)
}


def known(things: dict, id):
    if id not in things:
        raise ToolError("there is no such thing")
    return things[id]


def library() -> MCPServer:
    server = MCPServer("library", log_level="ERROR")

    @server.tool()
    def list_members() -> list[dict]:
        "List all members."
        return [*MEMBERS.values()]

    @server.tool()
    def get_member(member_id: str) -> dict:
        "Get a member."
        return known(MEMBERS, member_id)

    return server


def explored(tasks: int = 60, **servers: MCPServer) -> Explored:
    specs = {name: ServerSpec(name, server=server, isolation="shared") for name, server in servers.items()}
    with Pool(specs).open() as pool:
        return explore_sync(pool, tasks=tasks, seconds=20)


def using(found: Explored, tool: str) -> list:
    tasks = found.train + found.heldout
    return [task for task in tasks if any(call["tool"] == tool for call in task.tool_sequence)]


def test_a_page_of_a_list_is_not_the_list():
    server = library()

    @server.tool()
    def list_loans(member_id: str, page: int = 1) -> dict:
        "List the loans of a member, ten per page."
        known(MEMBERS, member_id)
        loans = [{"loan_id": f"L{member_id[1:]}{j:02}", "pages": 100 + j} for j in range(28)]
        return {"loans": loans[10 * (page - 1) : 10 * page], "total": 28, "next_page": page + 1}

    found = explored(library=server)
    assert using(found, "list_members") and not [
        task
        for task in using(found, "list_loans")
        if task.family.startswith(("count", "more", "extreme", "list", "sum"))
    ]


def test_a_refusal_is_not_an_empty_list():
    server = library()

    @server.tool()
    def list_loans(member_id: str) -> dict:
        "List the loans of a member."
        known(MEMBERS, member_id)
        if member_id in ("M12", "M14"):
            return {"error": "permission denied"}
        return {
            "loans": [
                {"loan_id": f"L{member_id[1:]}{j}", "book": f"Book {j}"} for j in range(int(member_id[1:]) % 4 + 1)
            ]
        }

    tasks = using(explored(library=server), "list_loans")
    assert tasks and not [
        task
        for task in tasks
        if {"M12", "M14"} & {call["params"]["member_id"] for call in task.tool_sequence if call["tool"] == "list_loans"}
    ]


def test_an_answer_that_changes_beside_a_list_that_does_not():
    server, rng = library(), random.Random(0)
    sensors = {f"S{k}": k for k in range(21, 31)}

    @server.tool()
    def list_sensors() -> list[dict]:
        "List all sensors."
        return [{"sensor_id": id} for id in sensors]

    @server.tool()
    def get_sensor(sensor_id: str) -> dict:
        "Get a sensor."
        k = known(sensors, sensor_id)
        readings = [{"reading_id": f"R{k}{j}", "level": k + j} for j in range(3)]
        return {"sensor_id": sensor_id, "online": rng.random() < 0.5, "load": rng.randrange(100), "readings": readings}

    tasks = using(explored(library=server), "get_sensor")
    assert not [task for task in tasks if "load" in task.question or "online" in task.question]


def test_an_empty_title_costs_its_own_question():
    server = library()

    @server.tool()
    def list_notes(member_id: str) -> dict:
        "List the notes of a member."
        known(MEMBERS, member_id)
        titles = ["", f"Plan {member_id[1:]} a", f"Plan {member_id[1:]} b"]
        return {"notes": [{"note_id": f"N{member_id[1:]}{j}", "title": title} for j, title in enumerate(titles)]}

    assert using(explored(library=server), "list_notes")


def test_an_argument_of_any_kind():
    server = library()

    @server.tool()
    def search_books(shelf: str, filter: str = "") -> list[dict]:
        "Search for books on a shelf."
        return [{"book_id": "K1", "title": "Emma", "pages": 3}, {"book_id": "K2", "title": "Ulysses", "pages": 7}]

    server._tool_manager.get_tool("search_books").parameters["properties"]["filter"] = True
    assert using(explored(library=server), "list_members")


def staff(people: list[str], cities: list[str]) -> MCPServer:
    server, users = MCPServer("staff", log_level="ERROR"), dict(enumerate(people, 1))

    @server.tool()
    def list_users() -> list[dict]:
        "List all users."
        return [{"user_id": id, "name": name} for id, name in users.items()]

    @server.tool()
    def get_user(user_id: int) -> dict:
        "Get a user."
        return {"user_id": user_id, "name": known(users, user_id), "city": cities[user_id % len(cities)]}

    return server


def test_users_of_two_servers_are_not_mixed_up():
    others = ["Gus Ide", "Hal Jon", "Ida Kay", "Jo Low", "Kim May", "Lea Nun", "Mo Orr", "Ned Poe"]
    found = explored(crm=staff(PEOPLE, CITIES), hr=staff(others, ["Lima", "Kyiv", "Doha"]))
    tasks = found.train + found.heldout
    assert tasks and {call["server"] for task in tasks for call in task.tool_sequence} == {"crm"}
    assert "crm has other things of the same name: explore hr alone" in str(found.reports[1])
    same = explored(crm=staff(PEOPLE, CITIES), hr=staff(PEOPLE, CITIES))
    assert len({call["server"] for task in same.train for call in task.tool_sequence}) == 2


CRASHING = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("boards", log_level="ERROR")
boards = {f"B{i}": {"board_id": f"B{i}", "owner": f"Owner {i}", "city": f"City {i}"} for i in range(11, 17)}

@server.tool()
def list_events() -> str:
    "List the events."
    os._exit(1)

@server.tool()
def list_boards() -> list[dict]:
    "List all boards."
    return [*boards.values()]

@server.tool()
def get_board(board_id: str) -> dict:
    "Get a board."
    return boards[board_id]

server.run("stdio")
"""


def test_a_tool_that_ends_the_session_costs_itself(tmp_path):
    (tmp_path / "boards.py").write_text(CRASHING)
    spec = ServerSpec("boards", command=sys.executable, args=[str(tmp_path / "boards.py")])
    with Pool({"boards": spec}).open() as pool:
        found = explore_sync(pool, tasks=20, seconds=30)
    assert found.train and "list_events failed" in str(found.reports[0])


@pytest.fixture
def city_in_the_environment(monkeypatch):
    monkeypatch.setitem(os.environ, "CITYVAR", "Oslo")


def test_a_short_variable_is_no_secret(city_in_the_environment):
    assert [task for task in explored(library=library()).train if task.success.get("values") == ["Oslo"]]
