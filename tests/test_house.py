"""The form of the exported code: no chains of classes, no method that only forwards, an engine that fits on a few
screens."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "mcp_grpo"


def modules() -> dict[str, str]:
    "Module name -> source, of all that notebooks export."
    files = (path for path in sorted(PACKAGE.glob("**/*.py")) if not path.name.startswith("_"))
    return {
        path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path.read_text(encoding="utf-8")
        for path in files
    }


def lines() -> int:
    "Exported lines, all modules together."
    return sum(len(source.splitlines()) for source in modules().values())


def statements(module: str) -> int:
    "Statements of a module, however they are laid out."
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(modules()[module])))


def chains() -> list[list[str]]:
    "Every class of ours with the classes of ours that it inherits from, one after the other."
    bases = {
        node.name: [base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases]
        for source in modules().values()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }

    def longest(name: str) -> list[str]:
        found = [longest(base) for base in bases[name] if base in bases and base != name]
        return [name, *max(found, key=len, default=[])]

    return [
        [kind for kind in longest(name) if kind != "UserError"] for name in bases
    ]  # the base of all errors that a person can mend


def forwards(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a method does nothing but hand its own parameters, just as they are, to one function or to one of its
    attributes' methods."""
    body = [s for s in method.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], (ast.Return, ast.Expr)):
        return False
    call = body[0].value.value if isinstance(body[0].value, ast.Await) else body[0].value
    if not isinstance(call, ast.Call):
        return False
    own = [a.arg for a in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)]
    given = [a.id if isinstance(a, ast.Name) else None for a in (*call.args, *(k.value for k in call.keywords))]
    to_function = isinstance(call.func, ast.Name) and given[:1] == own[:1] and sorted(map(str, given)) == sorted(own)
    to_attribute = (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Attribute)
        and sorted(map(str, given)) == sorted(own[1:])
    )
    return bool(own) and own[0] == "self" and (to_function or to_attribute)


def forwarders() -> list[str]:
    """Exported methods that only forward; a method that two classes of a module define, each in its own way, is a role
    they share."""
    found = []
    for module, source in modules().items():
        kinds = [kind for kind in ast.walk(ast.parse(source)) if isinstance(kind, ast.ClassDef)]
        methods = [
            (kind.name, method)
            for kind in kinds
            for method in kind.body
            if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        times = Counter(method.name for _, method in methods)
        found += [
            f"{module}.{kind}.{method.name}" for kind, method in methods if times[method.name] == 1 and forwards(method)
        ]
    return found


def test_no_class_of_ours_inherits_from_more_than_one_other():
    assert not [chain for chain in chains() if len(chain) > 2]


def test_no_method_only_forwards():
    assert not forwarders()


def test_the_search_for_forwarders_finds_one():
    found = ast.parse(
        "class A:\n    def f(self, x):\n        'Doc.'\n        return _f(self, x)\n    def g(self, x): return "
        "self.a.g(x)\n    def h(self, x): return _f(self, x + 1)"
    )
    assert [forwards(method) for method in found.body[0].body] == [True, True, False]


def test_the_engine_fits_on_a_few_screens():
    assert statements("rollout.hf") <= 400


if __name__ == "__main__":
    print(f"{lines()} exported lines; rollout.hf {statements('rollout.hf')} statements")
    print("chains:", [chain for chain in chains() if len(chain) > 2])
    print("forwarders:", forwarders())
