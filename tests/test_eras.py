"""Servers in both eras of MCP and over every transport: servers of each kind from the benchmark's table, and servers
whose specs promise more than they keep."""

import sys

import anyio
import pytest
from conftest import ROOT, third_party_part

sys.path.insert(0, str(ROOT / "tests/servers"))
import eras


@pytest.fixture(scope="module", autouse=True)
def gateways():
    "The SDK of the old era, and servers that others wrote."
    if why := third_party_part("sqlite") or third_party_part("node"):
        pytest.skip(why)


@pytest.mark.parametrize("name", ["memory", "slack", "everything"])
def test_a_server_is_the_same_in_every_cell(name):
    rows = anyio.run(eras.table, [name])
    assert len(rows) == 5 and not [(row["era"], row["over"], row["wrong"]) for row in rows if row["wrong"]]


def test_an_isolation_that_is_only_claimed_is_refused_or_found_out():
    for what, (became, meant) in anyio.run(eras.false_claims).items():
        assert meant in became, (what, became)
