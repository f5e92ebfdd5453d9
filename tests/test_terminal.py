"What tools, models and files say reaches the terminal as text, and the working folder lends no library."

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from mcp_grpo.observe.view import Reading, Table, read_episodes

EVIL = "\x1b]52;c;cm0gLXJmIC4=\x07\x1b[2J\x9b31m\rgone\u202e"
LIBRARIES = ("rich", "numpy", "typer", "torch")  # names of modules that the command imports


@pytest.fixture
def folder(tmp_path):
    "A folder with an episode that holds control sequences, and with modules that no command may run."
    episode = json.loads((ROOT / "tests/data/trajectories.jsonl").read_text().splitlines()[0])
    episode["text"] = [{"role": "policy", "text": f"a call{EVIL}"}, {"role": '[/bold]<script>"', "text": "x"}]
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode) + "\n")
    for name in LIBRARIES:
        (tmp_path / f"{name}.py").write_text(f"open('{name}.ran', 'w')")
    return tmp_path


def command(folder, *words):
    "Run the installed command in a folder."
    started = "import sys; from mcp_grpo.cli import app; app(sys.argv[1:])"
    plain = {
        name: value for name, value in os.environ.items() if name != "FORCE_COLOR"
    }  # which a notebook's kernel sets
    return subprocess.run(
        [sys.executable, "-P", "-c", started, *words], cwd=folder, capture_output=True, text=True, env=plain
    )


def test_control_sequences_are_written_out(folder):
    done = command(folder, "show", "episodes.jsonl")
    assert done.returncode == 0, done.stderr
    assert not set("\x1b\x07\x9b\r\u202e") & set(done.stdout) and r"\x1b]52;c;cm0gLXJmIC4=\x07" in done.stdout


def test_an_error_names_a_file_without_its_control_sequences(folder):
    done = command(folder, "show", "\x1b[2Jmissing")
    assert done.returncode == 1 and "\x1b" not in done.stderr and r"\x1b[2Jmissing" in done.stderr


def test_the_working_folder_lends_no_library(folder):
    for words in (("show", "episodes.jsonl"), ("evaluate", "no such policy")):
        command(folder, *words)
    assert not list(folder.glob("*.ran"))


def test_nothing_in_a_page_is_markup(folder):
    [episode] = read_episodes(folder / "episodes.jsonl")
    page = Reading([("title", [(part.role, part.text) for part in episode.text])])._repr_html_()
    assert "<script" not in page
    assert "<b>" not in Table(["<b>a"], [["<script>"]])._repr_markdown_()


BROKEN = {  # contents of a file of episodes -> what the sentence about it holds
    "no text": (b"\xff\xfe bad\n", "line 1"),
    "no outcome": (None, "has no outcome"),
    "three thousand lists": (b"[" * 3000 + b"]" * 3000 + b"\n", "line 1"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_of_episodes_is_named_in_a_sentence(kind, tmp_path):
    content, told = BROKEN[kind]
    if content is None:
        episode = json.loads((ROOT / "tests/data/trajectories.jsonl").read_text().splitlines()[0])
        content = json.dumps(episode | {"outcome": None}).encode() + b"\n"
    (tmp_path / "episodes.jsonl").write_bytes(content)
    done = command(tmp_path, "show", "episodes.jsonl")
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr


def test_the_half_written_last_line_of_a_killed_run_is_left_out(tmp_path):
    line = (ROOT / "tests/data/trajectories.jsonl").read_text().splitlines()[0]
    (tmp_path / "episodes.jsonl").write_text(f"{line}\n{line[:200]}")
    assert len(read_episodes(tmp_path / "episodes.jsonl")) == 1
