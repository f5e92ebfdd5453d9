"The repository agrees with itself: notebooks, package, README."

import filecmp, json, os, re, shutil, subprocess, sys
from pathlib import Path

import pytest
from conftest import ROOT, needs

BIN = Path(sys.executable).parent
WRITTEN = ("nbs", "experiments", "mcp_grpo")


def files(root: Path):
    return {
        p.relative_to(root)
        for folder in WRITTEN
        for p in (root / folder).glob("**/*")
        if p.suffix in (".py", ".ipynb") and ".ipynb_checkpoints" not in p.parts
    }


def test_export_and_clean_change_nothing(tmp_path):
    for name in (*WRITTEN, "settings.ini", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for command in (["nbdev_export"], ["nbdev_clean", "--fname", "nbs"], ["nbdev_clean", "--fname", "experiments"]):
        subprocess.run([BIN / command[0], *command[1:]], cwd=tmp_path, check=True, capture_output=True)
    assert files(tmp_path) == files(ROOT)
    changed = [str(f) for f in sorted(files(ROOT)) if not filecmp.cmp(ROOT / f, tmp_path / f, shallow=False)]
    assert not changed, f"run `make export`: {changed}"


def test_readme_is_made_from_the_index():
    made = subprocess.run(
        ["make", "-s", "readme", "README_TO=/dev/stdout"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert made == (ROOT / "README.md").read_text(), "run `make readme`"


def test_committed_outputs_are_small_and_free_of_paths():
    for path in [*(ROOT / "nbs").glob("**/*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")]:
        for cell in json.loads(path.read_text())["cells"]:
            text, where = json.dumps(cell.get("outputs", [])), f"{path.name}: {cell['source'][:2]}"
            assert len(text) < 200_000, f"{where}: a large output"
            assert '"name": "stderr"' not in text, f"{where}: a warning or a progress bar"
            assert not re.search(r"0x[0-9a-f]{8,}|/home/|/root/|/tmp/|\.venv/", text) and str(ROOT) not in text, (
                f"{where}: an address or a path"
            )


@pytest.mark.parametrize("lock", ["py311-cpu.txt", "py311-cpu-full.txt"])
def test_lock_is_pinned(lock):
    lines = [
        line for line in (ROOT / "requirements" / lock).read_text().splitlines() if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+]+", line) for line in lines)
    assert len({line.split("==")[0].lower() for line in lines}) == len(lines)


def test_no_test_is_skipped_where_all_packages_are_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(pytest.skip.Exception):
        needs("no_such_package")
    (tmp_path / ".ready-full").touch()
    with pytest.raises(ModuleNotFoundError):
        needs("no_such_package")
    assert not [
        path.name for path in (ROOT / "tests").glob("test_*.py") if re.search(r"\bimportorskip\(", path.read_text())
    ], "use `needs`"


def test_full_lock_contains_the_main_lock():
    main, full = [
        set((ROOT / "requirements" / n).read_text().splitlines()) for n in ("py311-cpu.txt", "py311-cpu-full.txt")
    ]
    assert {line for line in main if "==" in line} <= full


@pytest.mark.parametrize("gpus, wanted, unwanted", [(0, "py311-cpu.txt", "gpu"), (1, "-e .[dev,gpu]", "cpu")])
def test_install_takes_what_the_machine_has(tmp_path, gpus, wanted, unwanted):
    def program(name: str, lines: str):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)

    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    program(
        ".venv/bin/python",
        f'case "$*" in *"-m pip"*) echo "$*" >> {tmp_path}/asked ;; *platform*) echo 3 11 linux x86_64 ;; esac',
    )
    program("bin/nvidia-smi", 'echo "GPU 0: a card"' if gpus else "exit 9")
    done = subprocess.run(
        [tmp_path / "requirements/install"],
        env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    asked = (tmp_path / "asked").read_text()
    assert done.returncode == 0 and wanted in asked and unwanted not in asked, (done.stderr, asked)
