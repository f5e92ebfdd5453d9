"The package: import order, what it must not need, and how fast it loads."
import ast, json, re, subprocess, sys

import pytest
from conftest import ROOT

PACKAGE = ROOT/"mcp_grpo"
HEAVY = ("nbdev", "fastcore", "execnb", "ghapi", "vllm", "bitsandbytes", "deepspeed", "wandb", "weave", "skyrl_gym", "pandas", "peft", "matplotlib", "IPython")
LIGHT = ("config", "task", "client", "servers", "env", "tasks")  # may not cost a torch import


def notebooks():
    "Module name -> where its notebook stands: the numbers are the import order."
    found = {}
    for path in sorted((ROOT/"nbs").glob("**/*.ipynb")):
        source = "".join("".join(c["source"]) + "\n" for c in json.loads(path.read_text())["cells"])
        if name := re.search(r"^#\| *default_exp +(\S+)", source, re.M): found["mcp_grpo." + name[1]] = path.relative_to(ROOT).as_posix()
    return found


def imported(module: str, source: str):
    "Every module of the package that `source` imports, at whatever depth."
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import): yield from (a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(module.split(".")[:len(module.split(".")) - node.level] + [node.module or ""] if node.level else [node.module])
            yield from [base.rstrip(".")] + [f"{base}.{a.name}".replace("..", ".") for a in node.names]


def test_imports_never_point_to_a_later_notebook():
    order = notebooks()
    late = [f"{module} imports {target}" for module, place in order.items()
            for target in imported(module, (ROOT/(module.replace(".", "/") + ".py")).read_text()) if target in order and order[target] >= place]
    assert not late, late


def test_every_module_has_its_notebook():
    files = {"mcp_grpo." + p.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".") for p in PACKAGE.glob("**/*.py") if not p.name.startswith("_")}
    assert files == set(notebooks())


def in_fresh_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout.strip()


def test_package_needs_neither_nbdev_nor_heavy_extras():
    program = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY}: raise ImportError(name + " must not be needed")
sys.meta_path.insert(0, Absent())
for module in {sorted(notebooks())}: importlib.import_module(module)
"""
    # transformers looks for some of them itself: what it finds out is its own affair
    in_fresh_python("import transformers, torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM\n" + program)


@pytest.mark.parametrize("module", sorted(m for m in notebooks() if m.split(".")[1] in LIGHT))
def test_light_modules_load_in_under_two_seconds(module):
    program = f"import time; t = time.process_time(); import {module}, sys; print(time.process_time() - t, 'torch' in sys.modules)"
    seconds, torch = zip(*[in_fresh_python(program).split() for _ in range(2)])  # of two, since the first may find cold files
    assert set(torch) == {"False"} and min(map(float, seconds)) < 2
