"What exploring may call at a server whose entry declares no state of its own: nothing that is not known to read."

import sys
from collections import Counter

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
from mailbox import READING, WRITING

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import ServerSpec
from mcp_grpo.config import ConfigError
from mcp_grpo.tasks.explore import explore_sync, write_explored


def mailbox(folder, **more):
    return ServerSpec(
        "mailbox",
        command=sys.executable,
        args=[str(ROOT / "tests/servers/mailbox.py")],
        env={"MAILBOX_CALLS": str(folder / "calls")},
        **more,
    )


def called(folder) -> Counter:
    return Counter((folder / "calls").read_text().split())


@pytest.mark.parametrize("declared", [{}, {"isolation": "shared"}])
def test_nothing_is_called_that_may_write(tmp_path, declared):
    with Pool({"mailbox": mailbox(tmp_path, **declared)}) as pool:
        found = explore_sync(pool, tasks=6, seconds=20)
    [report], tasks = found.reports, found.train + found.heldout
    assert set(called(tmp_path)) == set(READING)
    assert set(report.left_out) == set(WRITING) and all("--allow" in why for why in report.left_out.values())
    assert {tool.tool for task in tasks for tool in task.tools} <= set(READING)


def test_a_tool_is_allowed_by_name(tmp_path):
    with Pool({"mailbox": mailbox(tmp_path)}) as pool:
        explore_sync(pool, tasks=2, seconds=20, allow=["mailbox.query", "find_and_zork"])
        with pytest.raises(ConfigError, match="no tool 'quary'; did you mean query"):
            write_explored(pool, tmp_path / "tasks", allow=["quary"])
    assert set(called(tmp_path)) == {*READING, "query", "find_and_zork"}


def test_all_are_called_where_episodes_have_a_state_of_their_own(tmp_path):
    with Pool({"mailbox": mailbox(tmp_path, isolation="process")}) as pool:
        explore_sync(pool, tasks=2, seconds=40)
    assert {"get_rid_of_label", "search_replace"} <= set(called(tmp_path))
