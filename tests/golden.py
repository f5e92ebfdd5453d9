"""A short run of the main job, put down to the bit, so that a change of the code's form can be shown to change nothing
else.

`python tests/golden.py check` runs the quick-start again (seed 0, six steps, deterministic) and compares it with
`tests/data/golden.json`; `record` writes that file. Both run in float32 with AVX2 kernels on one thread, so that
processors that have more give the same bits; processors of two makers differ in the last ones (the record was made on
one of AMD's).
"""

import argparse, hashlib, json, os, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests/data/golden.json"
PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
OVERRIDES = "train.autocast=none,evaluate.tasks=40,train.checkpoint_every=0"


def digest(value) -> str:
    "The sha256 of a value as JSON; floats are written so that they come back to the bit."
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def weights_digest(path: Path) -> str:
    "The sha256 of all tensors of a safetensors file, by name."
    from safetensors import safe_open

    found = hashlib.sha256()
    with safe_open(path, "pt") as file:
        for name in sorted(file.keys()):
            tensor = file.get_tensor(name)
            found.update(
                f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + tensor.contiguous().numpy().tobytes()
            )
    return found.hexdigest()


def play(model: str, steps: int) -> dict:
    "Run the quick-start in a new folder; what it sampled, learnt and ended with."
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "mode": "cpu",
            "run": "golden",
            "seed": 0,
            "steps": steps,
            "model": model,
            "tasks": str(ROOT / "data/processed/train.json"),
            "overrides": f"{OVERRIDES},data.heldout={ROOT / 'data/processed/validation.json'}",
        }
        words = [word for name, value in given.items() for word in ("-p", name, str(value))]
        command = [
            str(Path(sys.executable).with_name("papermill")),
            str(ROOT / "experiments/train.ipynb"),
            f"{folder}/train.ipynb",
            "--no-progress-bar",
            "--cwd",
            folder,
        ]
        environment = os.environ | PORTABLE | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr[-3000:])
        run = Path(folder) / "outputs/golden"
        return describe(run)


def reward_of(line: dict) -> float | None:
    """The reward in a line of trajectories.jsonl, of the record's form or of today's (the record wrote a sum of no
    terms as 0, not as 0.0)."""
    outcome = line.get("outcome") or line
    return outcome["reward"] if outcome["reward"] is None or any(outcome["rewards"].values()) else 0


def describe(run: Path) -> dict:
    "A run's folder as digests a step, its metrics and its results."
    played = {}
    for trajectory in lines(run / "trajectories.jsonl"):
        played.setdefault(trajectory["key"][1], []).append(trajectory)
    steps = []
    for metrics in lines(run / "metrics.jsonl"):
        episodes = played[metrics["step"] - 1]
        steps.append(
            {
                "ids": digest([t["ids"] for t in episodes]),
                "logprobs": digest([t["logprobs"] for t in episodes]),
                "rewards": digest([reward_of(t) for t in episodes]),
                "metrics": {name: value for name, value in metrics.items() if name != "seconds"},
            }
        )
    result = json.loads((run / "result.json").read_text())
    heldout = {
        when: digest({name: part[when] for name, part in result.items() if isinstance(part, dict) and when in part})
        for when in ("before", "after")
    }
    return {"steps": steps, "heldout": heldout, "weights": weights_digest(run / "model/model.safetensors")}


def differences(wanted: dict, found: dict, tolerance: float) -> list[str]:
    """What is not as it was, in words. The record's `renamed` gives a metric's new name, its `moved` by how much a
    named change may have moved a metric."""
    names, moved = wanted.get("renamed", {}), {name: change["by"] for name, change in wanted.get("moved", {}).items()}
    told = (
        [f"{len(found['steps'])} steps instead of {len(wanted['steps'])}"]
        if len(found["steps"]) != len(wanted["steps"])
        else []
    )
    for number, (old, new) in enumerate(zip(wanted["steps"], found["steps"]), 1):
        told += [f"step {number}: other {what}" for what in ("ids", "logprobs", "rewards") if old[what] != new[what]]
        for name, value in old["metrics"].items():
            now = new["metrics"].get(names.get(name, name), "missing")
            same = value == now or (
                isinstance(value, float)
                and isinstance(now, float)
                and abs(value - now) <= max(tolerance, moved.get(name, 0.0))
            )
            if not same:
                told.append(f"step {number}: {name} is {now}, was {value}")
    told += [
        f"held out {when}: another result"
        for when in ("before", "after")
        if wanted["heldout"][when] != found["heldout"][when]
    ]
    return told + (["other weights at the end"] if wanted["weights"] != found["weights"] else [])


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("what", choices=("record", "check"))
    asked.add_argument(
        "--model", default="tiny", help="the model the record was made with, where the packaged one has changed since"
    )
    asked.add_argument("--steps", type=int, default=6)
    asked.add_argument("--tolerance", type=float, default=0.0, help="how far a metric may be from the record's")
    given = asked.parse_args()
    found = play(given.model, given.steps)
    if given.what == "record":
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return print(f"{len(found['steps'])} steps recorded in {RECORD.relative_to(ROOT)}")
    wanted = json.loads(RECORD.read_text())
    wanted["steps"] = wanted["steps"][: given.steps]
    told = differences(wanted, found, given.tolerance)
    but = "".join(
        f"; {name} within {change['by']}: {change['why']}" for name, change in wanted.get("moved", {}).items()
    )
    print(
        "\n".join(told)
        or f"{len(found['steps'])} steps, the held-out results and the final weights are the record's, to the bit{but}"
    )
    sys.exit(bool(told))


if __name__ == "__main__":
    main()
