"""The benchmark of the client, small: it ends, and writes the figures it promises. Its fault table and third-party
servers have tests of their own."""

import pytest
from conftest import benchmark

pytestmark = pytest.mark.last


def test_client(tmp_path):
    kept = {"id": "B4", "what": "measured before", "value": 1, "unit": "calls", "goal": "1", "holds": True, "peer": ""}
    rows = benchmark("client", tmp_path, {"scale": 0.02, "only": "B1,B2,B3,B7", "peer_seconds": 0}, [kept])
    assert {"B1a", "B1b", "B1c", "B2a", "B2b", "B3a", "B3b", "B4", "B7a", "B7b", "B7c"} == {row["id"] for row in rows}
    known = [
        row for row in rows if row["unit"] in ("episodes", "trajectories") or row["id"] == "B7c"
    ]  # these do not depend on the machine
    assert len(known) > 5 and all(row["holds"] for row in known), known
