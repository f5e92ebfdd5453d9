"generate.ipynb as a user runs it: a task file and its card for each source, and one sentence where it cannot be made."

import hashlib, json, subprocess, sys
from pathlib import Path

from conftest import ROOT

from mcp_grpo.task import read_tasks

PAPERMILL = str(Path(sys.executable).with_name("papermill"))


def generate(folder: Path, **parameters) -> subprocess.CompletedProcess:
    "Run the notebook in a folder."
    words = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    return subprocess.run(
        [PAPERMILL, str(ROOT / "experiments/generate.ipynb"), "generated.ipynb", "--no-progress-bar", *words],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_rules_and_specifications_become_files_with_cards(tmp_path):
    call = {"step": 1, "server": "fmp", "tool": "fmp_get_company_profile", "params": {"symbol": "LZD"}}
    spec = {
        "conversation": [{"role": "user", "content": "In which sector is LZD?"}],
        "solution": {"tool_sequence": [call], "answer": "${step1.sector}"},
    }
    (tmp_path / "specs.json").write_text(
        json.dumps({"tasks": [spec, spec | {"solution": {"tool_sequence": [call | {"tool": "fmp_get_sector"}]}}]})
    )
    for source, more, wanted in (
        ("rules", {"families": "growth,retry,no_such_year", "each": 1, "held_out": 1}, 4),
        ("specs", {"input": "specs.json"}, 1),
    ):
        done = generate(tmp_path, source=source, out=f"tasks-{source}", **more)
        assert not done.returncode, done.stderr[-2000:]
        file = tmp_path / f"tasks-{source}/train.json"
        card = json.loads(file.with_suffix(".card.json").read_text())
        assert card["tasks"] == len(read_tasks(file)) == wanted and card["source"] == source
        assert card["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert card["dropped"] == {"it names a tool, a server or an argument that does not exist": 1}


def test_the_committed_files_are_those_of_their_cards():
    for name in ("train", "validation"):
        file = ROOT / f"data/processed/families/{name}.json"
        card = json.loads(file.with_suffix(".card.json").read_text())
        assert card["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest() and card["tasks"] == len(
            read_tasks(file)
        )
        assert len(card["families"]) == 40
