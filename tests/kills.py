"""Training runs that are killed with -9 at a given moment, and a comparison of what becomes of them with a run that was
left alone.

A kernel and its imports take longer than a short run. So one process that has imported everything forks for each run,
and the child executes the cells of `experiments/train.ipynb` as they stand, with the parameters after their defaults.
`python tests/kills.py` is that process: it reads one JSON line for each run (folder, parameters, kill_after) and
answers with one (code, seconds).
"""

import json, os, select, signal, subprocess, sys, time, traceback
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = [
    "train.steps=4",
    "train.tasks_per_step=1",
    "rollout.samples=4",
    "evaluate.tasks=2",
    "train.checkpoint_every=2",
]  # three seconds alone on a core
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    "MPLBACKEND": "agg",
}


def few_tasks(folder: Path) -> list[Path]:
    """Every sixtieth task of the repository, so that the checks before a run are short: a training file and a held-out
    file."""
    files = []
    for name in ("train", "validation"):
        rows = json.loads((ROOT / f"data/processed/{name}.json").read_text())
        files.append(Path(folder) / f"{name}.json")
        if not files[-1].exists():
            files[-1].write_text(json.dumps(rows[::60]))
    return files


def parameters(folder: Path, settings=(), transport: str = "memory", **more) -> dict:
    "The parameters of a short run on a few tasks; the task files are written to the folder."
    train, heldout = few_tasks(folder)
    overrides = [*SETTINGS, f"data.heldout={heldout}", f"servers.transport={transport}", *settings]
    return {"mode": "cpu", "run": "test", "tasks": str(train), "overrides": ",".join(overrides)} | more


def execute(given: dict) -> None:
    "Execute the cells of the training notebook with these parameters."
    cells = [
        cell
        for cell in json.loads((ROOT / "experiments/train.ipynb").read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    sources = []
    for cell in cells:
        sources.append("".join(cell["source"]))
        if "parameters" in cell["metadata"].get("tags", []):
            sources.append("# Parameters\n" + "".join(f"{name} = {value!r}\n" for name, value in given.items()))
    space = {
        "In": [""],
        "display": lambda *things: [thing._repr_png_() for thing in things if hasattr(thing, "_repr_png_")],
    }
    for source in sources:
        space["In"].append(source)
        exec(compile(source, "train.ipynb", "exec"), space)


def child(folder: str, given: dict) -> None:
    "A run in a process of its own; does not return."
    os.setsid()
    said = os.open(Path(folder) / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    code = 1
    try:
        execute(given)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    "Fork a run for each line of the input."
    import torch, transformers, matplotlib.figure  # noqa: E501, F401
    import mcp_grpo.observe.evaluate, mcp_grpo.observe.view, mcp_grpo.train.trainer, mcp_grpo.rollout.hf, mcp_grpo.env.preflight, mcp_grpo.servers.serve  # noqa: E501, F401

    for line in sys.stdin:
        asked, started = json.loads(line), time.perf_counter()
        pid = os.fork()
        if not pid:
            child(asked["folder"], asked["parameters"])
        exited = os.pidfd_open(pid)
        if not select.select([exited], [], [], asked["kill_after"])[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(exited)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([code, time.perf_counter() - started]), flush=True)


class Runs:
    "Runs of the training notebook, one at a time, in folders of their own."

    def __init__(self):
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=os.environ | ENVIRONMENT,
        )

    def play(
        self,
        folder: Path,  # below which the run's folder is made, as `make train` makes it
        given: dict,  # parameters
        kill_after: float | None = None,  # seconds; None: never
    ) -> tuple[int, float]:  # exit code, -9 if killed; seconds
        "Run the notebook until it ends or is killed."
        (Path(folder) / "outputs/test").mkdir(parents=True, exist_ok=True)
        self.server.stdin.write(
            json.dumps({"folder": str(folder), "parameters": given, "kill_after": kill_after}) + "\n"
        )
        self.server.stdin.flush()
        return tuple(json.loads(self.server.stdout.readline()))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.stdin.close()
        self.server.wait(60)


def killed_papermill(command: list, folder: Path, kill_after: float) -> int:
    "The exit code of papermill; after some seconds it and its kernel are killed, as when a machine goes down."
    (Path(folder) / "outputs/test").mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / "said", "ab") as said:
        job = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=os.environ | ENVIRONMENT)
    try:
        return job.wait(kill_after)
    except subprocess.TimeoutExpired:
        pass
    for process in [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass
    return job.wait(60)


def stage(folder: Path) -> str:
    "How far a run has come, by what is on disk."
    run = Path(folder) / "outputs/test"
    if (run / "result.json").exists():
        return "6 result"
    if (run / "model").exists():
        return "5 export"
    if (run / "checkpoints").exists() and any((run / "checkpoints").glob("step-*")):
        return "4 after a checkpoint"
    if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size:
        return "3 steps"
    if (run / "config.yaml").exists():
        return "2 config.yaml"
    return "1 before config.yaml"


def without_times(value):
    "A JSON value without what a clock says."
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name not in ("seconds", "wall_s")}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def without_random(manifest: dict) -> dict:
    """A checkpoint's manifest without the states of the global generators, which libraries draw from as well; no sample
    and no update depends on them."""
    files = {name: of for name, of in manifest["files"].items() if not name.startswith("random")}
    return manifest | {"files": files}


def record(folder: Path) -> dict:
    "What a finished run leaves, but for times and the log: JSON by file, weights as digests."
    run, found = Path(folder) / "outputs/test", {}
    for name in ("metrics", "trajectories", "heldout-before", "heldout-after"):
        found[name] = [without_times(json.loads(line)) for line in (run / f"{name}.jsonl").read_text().splitlines()]
    found["result"] = without_times(json.loads((run / "result.json").read_text()))
    found["config"] = (run / "config.yaml").read_text()
    found["checkpoints"] = {
        path.name: without_random(json.loads((path / "manifest.json").read_text()))
        for path in sorted((run / "checkpoints").iterdir())
    }
    found["model"] = json.loads((run / "model/manifest.json").read_text())
    found["files"] = sorted(path.name for path in run.iterdir() if not path.name.startswith("."))
    return found


def differences(wanted: dict, folder: Path) -> list[str]:
    "In what a finished run differs from a record."
    try:
        found = record(folder)
    except (OSError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]
    return [name for name in wanted if wanted[name] != found[name]]


if __name__ == "__main__":
    serve()
