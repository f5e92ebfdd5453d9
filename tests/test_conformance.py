"MCP's own conformance suite against the embedded servers, over HTTP."

import subprocess, sys

import pytest
from conftest import ROOT, third_party_part

sys.path.insert(0, str(ROOT / "tests/servers"))
from conformance import APPLICABLE, LEFT_OUT

from mcp_grpo.client.spec import EMBEDDED


@pytest.fixture(scope="session")
def suite():
    if left_out := third_party_part("conformance"):
        pytest.skip(left_out)


@pytest.mark.parametrize("name", EMBEDDED)
def test_it_conforms(suite, name):
    done = subprocess.run(
        [sys.executable, ROOT / "tests/servers/conformance.py", name], capture_output=True, text=True, timeout=3600
    )
    passed = [
        line.split()[1] for line in done.stdout.splitlines() if line.startswith(name) and line.endswith(" passed")
    ]
    assert done.returncode == 0 and passed == list(APPLICABLE), done.stdout + done.stderr
    assert done.stdout.count("left out:") == sum(map(len, LEFT_OUT.values()))
