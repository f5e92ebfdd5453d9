"The warm start, cut short: it ends, and what it leaves is a model like any other."

from conftest import papermill, run

from mcp_grpo.config import load_config
from mcp_grpo.model.policy import Plan, open_policy


def test_a_short_warm_start_leaves_a_model(tmp_path):
    done = run(
        papermill(
            "warmstart.ipynb",
            tmp_path,
            {"episodes": 120, "epochs": 1, "copying": 20, "measured": 6, "out": tmp_path / "model"},
        ),
        tmp_path,
    )
    assert done.returncode == 0, done.said[-3000:]
    printed = (tmp_path / "stdout").read_text()
    assert (
        "100.0% won" in printed and "held out" in printed
    )  # the oracle knows every answer, and the result was measured
    policy = open_policy(load_config("cpu", model={"name": str(tmp_path / "model")}), Plan("cpu", "float32"))
    assert 1e6 < sum(p.numel() for p in policy.model.parameters()) < 6e6
    assert sum(p.stat().st_size for p in (tmp_path / "model").iterdir()) < 16e6
