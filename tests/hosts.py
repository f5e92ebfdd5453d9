"""Two hosts on this machine: network namespaces with a cable between them, which can be cut. Needs Linux, root, and the
program `ip`."""

import json, os, shutil, subprocess, sys, time
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
HOSTS = ("10.77.0.1", "10.77.0.2")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore",
}
SETTINGS = {
    "train.tasks_per_step": 2,
    "rollout.samples": 4,
    "evaluate.tasks": 2,
    "train.checkpoint_every": 1,
    "parallel.nodes": 2,
    "parallel.rendezvous": f"{HOSTS[0]}:29577",
}


def why_not() -> str:
    "Why there can be no hosts here; empty if there can."
    if os.name != "posix" or os.geteuid() or not shutil.which("ip"):
        return "two hosts on one machine need Linux, root and the program ip"
    try:
        with two_hosts():
            return ""
    except subprocess.CalledProcessError as error:
        return f"{error}; network namespaces may not be made here"


class Hosts:
    "Hosts 0 and 1, and the cable."

    def __init__(self, names: list[str]):
        self.names = names

    def start(self, host: int, command: list, folder: Path, **environment: str) -> subprocess.Popen:
        "Start a program on a host; what it prints goes to FOLDER/host-N.log."
        with (folder / f"host-{host}.log").open("a") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *map(str, command)],
                cwd=folder,
                env=os.environ | ENVIRONMENT | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def cable(self, state: str):
        "Cut the cable (`down`) or mend it (`up`): nobody is told, packets do not arrive."
        subprocess.run(["ip", "-n", self.names[1], "link", "set", "cable-1", state], check=True)


@contextmanager
def two_hosts():
    "Make the hosts, and remove them with everything that still runs on them."
    names = [f"mcp-grpo-{os.getpid()}-{n}" for n in (0, 1)]
    try:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        ends = ["name", "cable-0", "netns", names[0], "type", "veth", "peer", "name", "cable-1", "netns", names[1]]
        subprocess.run(["ip", "link", "add", *ends], check=True)
        for n, name in enumerate(names):
            subprocess.run(["ip", "-n", name, "addr", "add", f"{HOSTS[n]}/24", "dev", f"cable-{n}"], check=True)
            for device in ("lo", f"cable-{n}"):
                subprocess.run(["ip", "-n", name, "link", "set", device, "up"], check=True)
        yield Hosts(names)
    finally:
        for name in names:
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in pids:
                if psutil.pid_exists(int(pid)):
                    psutil.Process(int(pid)).kill()
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def change(folder: Path) -> dict:
    """How far three steps of the learner on two hosts are from the same steps in one process, and what else
    `tests/sharded.py` compares."""
    program = [ROOT / "tests/sharded.py", folder, "moving"]
    subprocess.run([sys.executable, *map(str, program)], check=True, env=os.environ | ENVIRONMENT, cwd=folder)
    with two_hosts() as hosts:
        started = []
        for n in (0, 1):
            where = ["--nnodes", 2, "--node-rank", n, "--master-addr", HOSTS[0], "--master-port", 29578]
            torchrun = [sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", 1]
            started.append(hosts.start(n, [*torchrun, *program], folder, GLOO_SOCKET_IFNAME=f"cable-{n}"))
        assert [process.wait(600) for process in started] == [0, 0], (folder / "host-0.log").read_text()[-3000:]
    return json.loads((folder / "found-2.json").read_text())["moving"]


def steps_in(folder: Path, name: str) -> int:
    "The number of steps that a run has logged."
    log = folder / f"outputs/{name}/training.log"
    return sum(line.startswith("step ") for line in log.read_text().splitlines()) if log.exists() else 0


def trained(hosts: Hosts, folder: Path, name: str, steps: int, cut_after: int = 0, resume: bool = False) -> dict:
    """Train over both hosts; the cable is cut after some steps, if any. Exit statuses, seconds from the cut until both
    have ended, and the workers that are left then."""
    settings = {"data.heldout": ROOT / "data/processed/validation.json", "train.steps": steps} | SETTINGS
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    cli = Path(sys.executable).with_name("mcp-grpo")
    tasks = ["--tasks", ROOT / "data/processed/train.json", "--mode", "full"]
    train = [cli, "train", "--run", name, *(["--resume"] if resume else [*tasks, *words])]
    started = [hosts.start(0, train, folder), hosts.start(1, [cli, "join", folder / "outputs" / name], folder)]
    began = time.monotonic()
    if cut_after:
        while all(process.poll() is None for process in started) and steps_in(folder, name) < cut_after:
            time.sleep(0.1)
        hosts.cable("down")
        began = time.monotonic()
    codes = [process.wait(600) for process in started]
    seconds = time.monotonic() - began
    time.sleep(1)
    left = [
        pid
        for host in hosts.names
        for pid in subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split()
    ]
    return {"codes": codes, "seconds": seconds, "left": len(left), "steps": steps_in(folder, name)}


def differing(folder: Path, one: str, other: str) -> int:
    "The number of weights that differ between the models of two runs."
    a, b = (load_file(folder / f"outputs/{name}/model/model.safetensors") for name in (one, other))
    return sum(not torch.equal(a[key], b[key]) for key in a) + len(a.keys() ^ b.keys())
