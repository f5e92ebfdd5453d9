"""Every command and code block of the README and the guides, run as it stands there; what takes long is run with
smaller numbers."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, run

from mcp_grpo.client.spec import from_mcp_servers
from mcp_grpo.config import Config, dotted_fields
from mcp_grpo.task import Task

SMALL = "train.tasks_per_step=2,rollout.samples=2,evaluate.tasks=4"  # instead of a hundred episodes a step
BOOKS = re.search(
    r'write_text\("""(.*?)"""',
    "".join(json.loads((ROOT / "nbs/guides/servers.ipynb").read_text())["cells"][3]["source"]),
    re.S,
)[1]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "nbs/guides").glob("*.ipynb"))]


def text_of(page: Path) -> str:
    "The prose of a page, code cells left out: those are run by nbdev_test."
    if page.suffix == ".md":
        return page.read_text()
    return "\n\n".join(
        "".join(cell["source"]) for cell in json.loads(page.read_text())["cells"] if cell["cell_type"] == "markdown"
    )


def blocks(language: str) -> list[tuple[str, str]]:
    "(page, block) of every fenced block in a language."
    return [
        (page.stem, block)
        for page in pages()
        for block in re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.S | re.M)
    ]


def commands() -> list[tuple[str, str]]:
    "(page, command) of every line of a shell block, comments left out."
    return [
        (page, line.partition("  #")[0].strip())
        for page, block in blocks("sh")
        for line in block.splitlines()
        if line.strip()
    ]


def test_the_table_of_settings_is_that_of_the_code():
    [output] = json.loads((ROOT / "nbs/guides/settings.ipynb").read_text())["cells"][-1]["outputs"]
    table = "".join(output["data"]["text/markdown"])
    for section in Config.model_fields.values():
        for field in getattr(section.annotation, "model_fields", {}).values():
            assert field.description in table
    assert {f"`{name}`" for name in dotted_fields(Config, options=True)} <= set(re.findall("`[^`]*`", table))


def shortened(command: str) -> str:
    "A training command with one step and few episodes."
    if "papermill" in command:
        return f"{command} -p steps 1 -p overrides {SMALL}"
    found = re.search(r'ARGS=(?:"(.*?)"|(\S+))', command)
    before, arguments = (command.replace(found[0], "").strip(), found[1] or found[2]) if found else (command, "")
    return f'{before} ARGS="{arguments} --set {SMALL} --steps 1"'


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    "The repository as somebody finds it, with what the guides' commands speak of beside it."
    folder = tmp_path_factory.mktemp("docs") / "mcp_grpo"
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    for name in (
        "mcp_grpo",
        "experiments",
        "nbs",
        "data",
        "Makefile",
        "pyproject.toml",
        "requirements",
    ):  # as they stand here, committed or not
        subprocess.run(["cp", "-r", ROOT / name, folder], check=True)
    (folder / ".venv").symlink_to(sys.prefix)
    (Path(sys.prefix) / ".ready").touch()
    servers, row = (
        json.loads(blocks("json")[0][1]),
        next(json.loads(block) for _, block in blocks("json") if "env_class" in block),
    )
    held_out = row | {"prompt": [row["prompt"][0], {"role": "user", "content": "In which year did Emma come out?"}]}
    (folder / "books_server.py").write_text(BOOKS)
    (folder / "servers.json").write_text(json.dumps(servers))
    (folder / "books.json").write_text(json.dumps([row]))
    (folder / "books_heldout.json").write_text(json.dumps([held_out]))
    (folder / "path/to").mkdir(parents=True)
    model = folder / "path/to/model"  # with the context that the guide's command asks for
    shutil.copytree(folder / "mcp_grpo/assets/tiny", model)
    (model / "config.json").write_text(
        json.dumps(json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 4096})
    )
    return folder


def training_commands() -> dict[str, list[str]]:
    "The training commands by page, in order; one that stands on several pages is run for the first."
    found, known = {}, set()
    for page, command in commands():
        if re.match(r"make train|.*papermill", command) and command not in known:
            found.setdefault(page, []).append(command)
        known.add(command)
    return found


@pytest.mark.last
@pytest.mark.parametrize("page", training_commands())
def test_the_training_commands_of_a_page_run(page, checkout):
    "One after the other: some go on where the one before has ended."
    for command in training_commands()[page]:
        before = set(checkout.glob("outputs/*"))
        done = run(["bash", "-c", shortened(command)], checkout)
        assert done.returncode == 0, f"{command}: {done.said[-3000:]}"
        if "dry-run" in command:
            continue
        (folder,) = set(checkout.glob("outputs/*")) - before
        assert (folder / "model/model.safetensors").is_file(), command
        if "books" in command:
            assert json.loads((folder / "result.json").read_text())["heldout"]["after"]["n"] == 1


OTHER = {  # how the commands that train nothing are seen to: by this test, or by the one named
    (
        "git clone https://github.com/mcp-grpo/mcp_grpo && cd mcp_grpo"
    ): "the fixture clones the repository from where it is",
    (
        ".venv/bin/mcp-grpo train --servers servers.json --tasks tasks/ --model Qwen/Qwen3-0.6B --mode lora "
        "--warmstart 100 --set train.gradient_checkpointing=true"
    ): "test_cli.py, with the packaged model: this one is not to be had without a network",
    (
        ".venv/bin/mcp-grpo train --servers servers.json --tasks tasks/ --model smollm2 --mode lora --warmstart 150 "
        "--steps 0 --set train.tasks_per_step=8,train.warmstart.lr=1.5e-3"
    ): "test_packaged_models.py loads that model, test_cli.py trains with the packaged one",
    (
        ".venv/bin/mcp-grpo evaluate gpt-5-mini --endpoint https://api.openai.com/v1 --servers servers.json "
        "--tasks tasks/train.json --rounds 4"
    ): "test_export.py, with the oracle in the place of a paid model",
    (
        ".venv/bin/mcp-grpo train --servers servers.json --tasks tasks/ --model path/to/model.gguf --mode lora "
        "--warmstart 30"
    ): "experiments/bench_models.ipynb trains with such a file",
    ".venv/bin/mcp-grpo tasks --servers servers.json --out tasks/": "test_cli.py, with the seeds that its server needs",
    "export OPENAI_API_KEY=...": "a key of one's own",
    ".venv/bin/mcp-grpo export outputs/books --as gguf": "test_gguf.py, with a small model",
    (".venv/bin/mcp-grpo export outputs/evaluations/NAME --successes --out taught.jsonl"): "test_export.py",
    (
        ".venv/bin/mcp-grpo warmstart --servers servers.json --tasks tasks/ --episodes taught.jsonl --model smollm2 "
        "--mode lora"
    ): "test_export.py, with the packaged model",
    ".venv/bin/mcp-grpo login wiki --servers mcp.json": "test_oauth.py, with a server of its own",
    ".venv/bin/mcp-grpo login wiki --servers mcp.json --no-browser --port 8765": "test_oauth.py",
    ".venv/bin/mcp-grpo login wiki --servers mcp.json --forget": "test_oauth.py",
    ".venv/bin/mcp-grpo chat outputs/books --servers servers.json": "test_talk.py, with the packaged model",
    ".venv/bin/mcp-grpo serve-policy outputs/desk": "test_talk.py, with the packaged model",
    ".venv/bin/mcp-grpo serve-policy outputs/books": "test_talk.py, with the packaged model",
    ".venv/bin/mcp-grpo serve polygon": "test_serve.py",
    ".venv/bin/mcp-grpo serve fmp --http --port 8000": "test_serve.py",
    ".venv/bin/mcp-grpo serve tavily --live": "test_live.py, against a stand-in for the service",
}


def test_every_other_command_is_accounted_for():
    from test_cli import guide_commands  # they are run there; those of the first page in experiments/bench_people.ipynb

    own = {tuple(words) for words in guide_commands()}
    unknown = (
        {command for page, command in commands() if page != "start" and tuple(shlex.split(command)[1:]) not in own}
        - {command for of_page in training_commands().values() for command in of_page}
        - set(OTHER)
    )
    assert not {command for command in unknown if not re.match(r"make test|make export", command)}


def test_json_blocks_are_read(tmp_path):
    (tmp_path / "start").mkdir()
    for page, block in blocks("json"):
        value = json.loads(block)
        if "mcpServers" in value:
            (tmp_path / "servers.json").write_text(block)
            assert from_mcp_servers(tmp_path / "servers.json"), page
        else:
            Task.from_row(value, page)


def test_the_readmes_python_is_a_cell_of_the_index():
    "It is then run by nbdev_test."
    cells = [
        "".join(cell["source"]).strip()
        for cell in json.loads((ROOT / "nbs/index.ipynb").read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    python = [
        block.strip()
        for block in re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
        if "import " in block
    ]
    assert python and all(block in cells for block in python)


def test_every_make_target_of_the_tables_exists():
    targets = set(re.findall(r"`make (\w+)", "".join(text_of(page) for page in pages())))
    known = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M))
    assert targets <= known, targets - known


def headings(page: Path) -> set[str]:
    "The anchors of a page, as a site makes them from its headings."
    found = re.findall(r"^#+ +(.+?)\s*$", re.sub(r"^```.*?^```", "", text_of(page), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def test_links_of_all_pages_lead_somewhere():
    "Of guides, module notebooks, experiments and texts: files that exist, and headings in them."
    texts = [ROOT / name for name in ("README.md", "CHANGELOG.md")]
    for page in (*texts, *(ROOT / "nbs").rglob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")):
        if ".ipynb_checkpoints" in page.parts:
            continue
        for path, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
            target = page.parent / path if path else page
            if target.suffix in ("", ".ipynb", ".md", ".png") and (path or anchor):
                assert target.exists(), f"{page.name}: {path}"
                assert not anchor or anchor in headings(target), f"{page.name}: {path}#{anchor}"


def test_addresses_of_this_project_lead_to_pages():
    for page in (*pages(), ROOT / "nbs/llms.txt", ROOT / "CHANGELOG.md"):
        text = page.read_text() if page.suffix != ".ipynb" else text_of(page)
        for place in re.findall(r"https://mcp-grpo\.github\.io/mcp_grpo/([\w/]+)\.html", text):
            assert (ROOT / f"nbs/{place}.ipynb").exists(), f"{page.name}: {place}"


def test_llms_txt_names_every_guide_and_only_what_exists():
    text = (ROOT / "nbs/llms.txt").read_text()
    linked = re.findall(r"\(https://mcp-grpo\.github\.io/mcp_grpo/guides/(\w+)\.html\)", text)
    assert sorted(linked) == sorted(path.stem for path in (ROOT / "nbs/guides").glob("*.ipynb"))
    known = run([sys.executable, "-m", "mcp_grpo.cli", "--help"], ROOT).stdout
    named = set(re.findall(r"`mcp-grpo ([\w-]+)", text))
    assert named and all(re.search(rf"^\W*{name}\b", known, re.M) for name in named)
