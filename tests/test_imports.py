"The package: import order, what it must not need, and how fast it loads."

import ast, json, re, subprocess, sys

import pytest
from conftest import ROOT

PACKAGE = ROOT / "mcp_grpo"
HEAVY = (
    "nbdev",
    "fastcore",
    "execnb",
    "ghapi",
    "vllm",
    "bitsandbytes",
    "deepspeed",
    "wandb",
    "weave",
    "skyrl_gym",
    "tinker",
    "pandas",
    "peft",
    "matplotlib",
    "IPython",
)
ADAPTERS = ("mcp_grpo.interop.skyrl",)  # each is the plug-in of another trainer, and needs that trainer
WITH_TORCH = (
    "model",
    "rollout.hf",
    "rollout.packed",
    "rollout.rows",
    "rollout.slots",
    "rollout.vllm",
    "rollout.remote",
    "rollout.served",
    "rollout.tinker",
    "train",
    "plan",
)  # where the model is; nothing else may cost a torch import


def notebooks():
    "Module name -> where its notebook stands: the numbers are the import order."
    found = {}
    for path in sorted((ROOT / "nbs").glob("**/*.ipynb")):
        source = "".join("".join(c["source"]) + "\n" for c in json.loads(path.read_text())["cells"])
        if name := re.search(r"^#\| *default_exp +(\S+)", source, re.M):
            found["mcp_grpo." + name[1]] = path.relative_to(ROOT).as_posix()
    return found


def imported(module: str, source: str):
    "Every module of the package that `source` imports, at whatever depth."
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(
                module.split(".")[: len(module.split(".")) - node.level] + [node.module or ""]
                if node.level
                else [node.module]
            )
            yield from [base.rstrip(".")] + [f"{base}.{a.name}".replace("..", ".") for a in node.names]


def test_imports_never_point_to_a_later_notebook():
    order = notebooks()
    late = [
        f"{module} imports {target}"
        for module, place in order.items()
        for target in imported(module, (ROOT / (module.replace(".", "/") + ".py")).read_text())
        if target in order and order[target] >= place
    ]
    assert not late, late


def test_modules_import_each_other_in_one_way():
    "nbdev makes a notebook's import relative only if it stands on one line."
    absolute = [
        f"{module}: {line}"
        for module in notebooks()
        for line in (ROOT / (module.replace(".", "/") + ".py")).read_text().splitlines()
        if re.match(r"(from|import) mcp_grpo\b", line)
    ]
    assert not absolute, f"write one import per line: {absolute}"


def test_every_module_has_its_notebook():
    files = {
        "mcp_grpo." + p.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for p in PACKAGE.glob("**/*.py")
        if not p.name.startswith("_")
    }
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
for module in {sorted(set(notebooks()) - set(ADAPTERS))}: importlib.import_module(module)
"""
    # transformers looks for some of them itself: what it finds out is its own affair
    in_fresh_python(
        (
            "import transformers, torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, "
            "Qwen3ForCausalLM, get_scheduler\n"
        )
        + program
    )


def test_an_adapter_says_what_it_needs():
    found = in_fresh_python(
        "import sys\nsys.modules['skyrl_gym'] = None\ntry: import mcp_grpo.interop.skyrl\nexcept ImportError as "
        "e: print(e)"
    )
    assert found == "mcp_grpo.interop.skyrl needs skyrl_gym; install it with: pip install 'mcp-grpo[skyrl]'"


def fastest(program: str, before: str = ""):
    """CPU seconds of a statement, the best of up to four, since files may be cold and cores busy; and whether torch was
    loaded."""
    measure = (
        f"import sys, time\n{before}\nt = time.process_time()\n{program}\nprint(time.process_time() - t, 'torch' in "
        "sys.modules)"
    )
    seconds = 9.0
    for _ in range(4):
        found, torch = in_fresh_python(measure).split()
        seconds = min(seconds, float(found))
        if seconds < 2:
            break
    return seconds, torch == "True"


@pytest.mark.parametrize(
    "module",
    [
        "mcp_grpo",
        *sorted(m for m in notebooks() if m not in ADAPTERS and not m.removeprefix("mcp_grpo.").startswith(WITH_TORCH)),
    ],
)
def test_modules_without_a_model_load_in_under_two_seconds(module):
    seconds, torch = fastest(f"import {module}")
    if seconds >= 2:
        seconds /= fastest("import mcp, pydantic, httpx2")[
            0
        ]  # a slow or busy machine: at most twice what cannot be done without
    assert seconds < 2 and not torch


def test_modules_with_a_model_add_little_to_torch():
    modules = sorted(m for m in notebooks() if m.removeprefix("mcp_grpo.").startswith(WITH_TORCH))
    assert modules
    seconds, _ = fastest(
        f"import {', '.join(modules)}",
        before="import torch\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM",
    )
    assert seconds < 2
