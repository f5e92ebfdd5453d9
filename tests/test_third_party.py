"""Servers that others wrote, from the pool: each is called, and those that remember are proved isolated with 16
episodes at once."""

import sys

import anyio
import pytest
from conftest import ROOT, third_party_part

from mcp_grpo.client.pool import Pool
from mcp_grpo.env.scripted import play_all
from mcp_grpo.tasks.explore import explore

sys.path.insert(0, str(ROOT / "tests/servers"))
from fault_table import here_already, server_processes, until
from third_party import episodes_at_once, third_party

STATEFUL = ("filesystem", "memory", "git", "motherduck", "sqlite")
STATELESS = ("everything", "time")
EPISODES = 16


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    third_party_part()
    return third_party(tmp_path_factory.mktemp("third-party"))


@pytest.fixture
def server(servers, request):
    assert set(servers) == {*STATEFUL, *STATELESS}
    chosen = servers[request.param]
    if chosen.left_out:
        pytest.skip(chosen.left_out)
    return chosen


async def with_pool(server, use):
    "What `use(pool)` returns; afterwards no process is left."
    others = here_already()
    with anyio.fail_after(400):
        async with Pool({server.spec.name: server.spec}) as pool:
            found = await use(pool)
    assert await until(lambda: not server_processes(others)), [p.cmdline() for p in server_processes(others)]
    return found


@pytest.mark.parametrize("server", STATEFUL + STATELESS, indirect=True)
def test_it_is_called(server):
    async def use(pool):
        async with await pool.lease([server.spec.name]) as lease:
            return await lease.call(server.spec.name, *server.call[:2])

    result = anyio.run(with_pool, server, use)
    assert not result.fault and not result.is_error and server.call[2] in result.content, result


@pytest.mark.parametrize("server", STATEFUL, indirect=True)
def test_episodes_at_once_see_only_themselves(server):
    async def use(pool):
        assert not (wrong := await episodes_at_once(pool, server, EPISODES)), wrong
        proof = await pool.prove(server.spec.name, write=server.writes, read=server.read)
        assert proof.held and proof.level == server.spec.isolation, proof

    anyio.run(with_pool, server, use)


@pytest.mark.parametrize("server", ("filesystem", "time"), indirect=True)
def test_tasks_are_found_at_it(server):
    async def use(pool):
        found = await explore(pool, tasks=6, seconds=40)
        tasks = found.train + found.heldout
        return tasks, found, await play_all("oracle", tasks, pool), await play_all("null", tasks, pool)

    tasks, found, solved, idle = anyio.run(with_pool, server, use)
    assert len(tasks) >= 4, str(found)
    assert {outcome.reward for outcome in solved} == {1} and not any(outcome.success for outcome in idle)
    assert {
        tool.changes_state
        for task in tasks
        for tool in task.tools
        if tool.tool.startswith(("write", "create", "edit", "move"))
    } <= {True}
