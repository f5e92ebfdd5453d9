"The contributing guide says where eleven changes go: notebooks and lines must be there."

import importlib
import inspect
import json
import re

import pytest
from conftest import ROOT

GUIDE = ROOT / "nbs/guides/contributing.ipynb"


def changes() -> list[tuple[str, str, list[str]]]:
    "(what to add, notebook, code to look for) of every row of the table."
    text = "\n".join("".join(cell["source"]) for cell in json.loads(GUIDE.read_text())["cells"])
    table = text.partition("| to add |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]]
    return [(what, notebook.strip("`"), re.findall(r"`([^`]+)`", lines)) for what, notebook, lines in rows]


def test_there_are_eleven():
    assert len(changes()) == 11


@pytest.mark.parametrize("what, notebook, wanted", changes())
def test_the_lines_are_where_the_guide_says(what, notebook, wanted):
    source = "\n".join(
        "".join(cell["source"])
        for cell in json.loads((ROOT / notebook).read_text())["cells"]
        if cell["cell_type"] == "code"
    )
    for code in wanted:
        if "/" in code:
            assert (ROOT / code).exists(), f"{what}: {code}"
        elif code == "make_server":
            assert all(code in path.read_text() for path in (ROOT / "nbs/03_servers").glob("0[3-7]_*.ipynb"))
        else:
            assert code in source, f"{what}: {code} is not in {notebook}"


def test_each_function_of_the_chain_calls_the_next():
    text = "\n".join("".join(cell["source"]) for cell in json.loads(GUIDE.read_text())["cells"])
    names = re.findall(r"`([^`]+)`", next(line for line in text.splitlines() if line.startswith("`cli.train` →")))
    assert names[0] == "cli.train" and names[-1] == "train.loss.policy_loss"

    def found(name: str):
        module = re.match(r"(?:[a-z]+\.)+", name)[0].rstrip(".")
        if name.rpartition(".")[0] == module:
            return getattr(importlib.import_module(f"mcp_grpo.{module}"), name.rpartition(".")[2])
        return getattr(getattr(importlib.import_module(f"mcp_grpo.{module}"), name.split(".")[-2]), name.split(".")[-1])

    called = {"__call__": "self.run_pass("}  # the learner's `Pass`
    for name, following in zip(names, names[1:]):
        method = following.rpartition(".")[2]
        assert called.get(method, f"{method}(") in inspect.getsource(inspect.unwrap(found(name))), (
            f"{name} does not call {following}"
        )


def test_every_folder_of_notebooks_is_in_the_table():
    text = "\n".join("".join(cell["source"]) for cell in json.loads(GUIDE.read_text())["cells"])
    for folder in sorted((ROOT / "nbs").glob("[0-9]*")):
        assert f"`nbs/{folder.name}`" in text, folder.name
