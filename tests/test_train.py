"The main job, small: what it prints, what it leaves on disk, and what an interrupt or a kill leaves."

import json, os, random, signal, subprocess, sys, time
from pathlib import Path

import kills
import psutil
import pytest
from conftest import ROOT, TINY, commands, needs, run, train_command

from mcp_grpo.config import load_config, save_config
from mcp_grpo.observe.track import read_lines
from mcp_grpo.model.policy import Plan, open_policy
from mcp_grpo.rollout.trajectory import read_trajectories


def shows_the_run(notebook: Path):
    "A headless run leaves the learning curve as a picture, and success and time as tables."
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    tables = "".join("".join(data.get("text/markdown", "")) for data in outputs)
    assert any("image/png" in data for data in outputs)
    assert (
        "| heldout | n | before | interval | warmstart | interval | after | interval |" in tables
        and "| lookup |" in tables
    )
    assert "| part of a step | seconds | share |" in tables and "| generation |" in tables
    assert not any("Figure size" in "".join(data.get("text/plain", "")) and "image/png" not in data for data in outputs)


def is_tracked_offline(out: Path):
    "A project's name is enough; without a key Weights & Biases stays offline, in the run's folder."
    [file] = out.glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 3000 and b"groups_with_spread" in file.read_bytes()
    assert "tracked in Weights & Biases (offline)" in (out / "training.log").read_text()


def test_a_tiny_run_leaves_everything_in_its_folder(run_notebook, tmp_path, monkeypatch):
    "Its notebook shows it too, and a tracker whose project is named follows it."
    monkeypatch.setenv("WANDB_PROJECT", "demo")
    needs("wandb")
    room = ["rollout.max_tokens=0", "rollout.max_new_tokens=0"]
    done = run_notebook([*TINY, "evaluate.tasks=12", "train.warmstart=2", *room])
    assert done.returncode == 0, done.said[-3000:]
    out = tmp_path / "outputs/test"
    shows_the_run(tmp_path / "train.ipynb")
    is_tracked_offline(out)
    assert {
        "config.yaml",
        "training.log",
        "metrics.jsonl",
        "trajectories.jsonl",
        "heldout-before.jsonl",
        "heldout-warmstart.jsonl",
        "heldout-after.jsonl",
        "result.json",
    } <= {p.name for p in out.iterdir()}
    episode = read_trajectories(out / "heldout-after.jsonl")[0]
    assert [part.role for part in episode.text][:2] == ["prompt", "policy"] and "<|im_start|>user" in episode.text[
        0
    ].text
    assert all(t.text for t in read_trajectories(out / "trajectories.jsonl"))
    metrics = read_lines(out / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [1, 2]
    assert set(metrics[0]["seconds"]) == {"generation", "tools", "learning", "rest"}
    assert len(read_lines(out / "trajectories.jsonl")) == 2 * 2 * 2  # steps, tasks, samples
    printed = (tmp_path / "stdout").read_text()
    assert (
        printed.count("\nstep ") == 2 and "before: heldout success" in printed and "after: heldout success" in printed
    )
    assert printed.count("\r") == 0  # no progress bars
    log = (out / "training.log").read_text().splitlines()
    for_programs = [line for line in log if line.startswith(("Collected ", "PPO Ratio Check"))]  # of `train.health`
    assert sum("sample-time logprobs: mean=" in line for line in for_programs) == 2
    assert not set(for_programs) & set(printed.splitlines())
    assert set(log) - set(for_programs) <= set(printed.splitlines())

    assert open_policy(
        load_config(model={"name": str(out / "model")}), Plan("cpu", "float32")
    ).model.config.vocab_size  # a model like any other

    result = json.loads((out / "result.json").read_text())
    assert {"mode", "model", "data", "seed", "steps", "wall_s", "heldout", "reward_curve", "versions"} <= set(result)
    assert result["data"]["train"] == {
        "file": str(ROOT / "data/processed/train.json"),
        "tasks": len(json.loads((ROOT / "data/processed/train.json").read_text())),
    }
    assert (result["mode"], result["model"], result["steps"], len(result["reward_curve"])) == ("cpu", "tiny", 2, 2)
    assert (
        "warm start: 2 supervised steps on 4 demonstrations" in printed
        and " groups have spread" in printed
        and result["warmstart"]["steps"] == 2
    )
    assert 300 < load_config(str(out / "config.yaml")).rollout.max_tokens < 1024  # found by demonstrations
    for when in ("before", "after"):
        part = result["heldout"][when]
        assert 0 <= part["ci95"][0] <= part["success"] <= part["ci95"][1] <= 1 and part["n"] > 0 and part["by_family"]


def test_a_warm_start_that_leaves_nothing_to_learn_is_the_run(run_notebook, tmp_path):
    "The packaged model solves these tasks; at a temperature of almost 0 it solves them every time."
    easy = [
        row
        for row in json.loads((ROOT / "data/processed/train.json").read_text())
        if row["extra_info"]["family"] == "lookup"
    ][:4]
    (tmp_path / "easy.json").write_text(json.dumps(easy))
    done = run_notebook(
        [*TINY, "rollout.temperature=0.001", "train.warmstart={steps: 1, lr: 1e-6}"],
        tasks=str(tmp_path / "easy.json"),
    )
    assert done.returncode == 0, done.said[-3000:]
    assert (
        "no step of reinforcement is made" in (tmp_path / "outputs/test/training.log").read_text()
        and (tmp_path / "outputs/test/model").is_dir()
    )
    assert json.loads((tmp_path / "outputs/test/result.json").read_text())["steps"] == 0


def test_a_run_without_steps_plays_only_what_it_needs(run_notebook, tmp_path):
    "Nothing follows the warm start: no groups are played to look for spread, and its figures are those at the end."
    done = run_notebook([*TINY, "train.warmstart=2", "train.steps=0"])
    assert done.returncode == 0, done.said[-3000:]
    out = tmp_path / "outputs/test"
    log, result = (out / "training.log").read_text(), json.loads((out / "result.json").read_text())
    assert "have spread" not in log and "after: no step was made, so the figures are those of the warm start" in log
    assert (
        result["heldout"]["after"] == result["warmstart"]["heldout"]
        and result["difference"]
        and (out / "model").is_dir()
    )
    assert (
        (out / "heldout-after.jsonl").read_bytes()
        == (out / "heldout-warmstart.jsonl").read_bytes()
        != (out / "heldout-before.jsonl").read_bytes()
    )


def test_the_preset_lora_over_stdio(run_notebook, tmp_path):
    done = run_notebook([*TINY, "train.steps=1", "evaluate.tasks=2", "servers.transport=stdio"], mode="lora")
    assert done.returncode == 0, done.said[-3000:]
    assert len(read_lines(tmp_path / "outputs/test/metrics.jsonl")) == 1


def test_the_preset_vllm(run_notebook, tmp_path):
    "vLLM samples on this machine, proves every update, and its logprobs are the learner's."
    needs("vllm")
    done = run_notebook([*TINY, "evaluate.tasks=2", "rollout.gpu_memory=0.05", "model.device=cpu"], mode="vllm")
    assert done.returncode == 0, done.said[-3000:]
    metrics = read_lines(tmp_path / "outputs/test/metrics.jsonl")
    assert len(metrics) == 2 and all(
        m.get("sampler_gap", 0) < 0.03 for m in metrics
    )  # absent where no group has a spread
    assert "vLLM samples, in this process" in (tmp_path / "outputs/test/training.log").read_text()


def processes_after_two_steps(job: subprocess.Popen, metrics: Path) -> list[psutil.Process]:
    "The processes that a run has started, once it has made two steps."
    deadline = time.monotonic() + 900
    while len(read_lines(metrics)) < 2:
        assert job.poll() is None and time.monotonic() < deadline, "it ended before its second step"
        time.sleep(0.2)
    return psutil.Process(job.pid).children(recursive=True)


def test_interrupt_keeps_finished_steps_leaves_no_process_and_can_be_resumed(run_notebook, tmp_path):
    command = train_command(tmp_path, {}, [*TINY, "train.steps=500", "servers.transport=stdio", "evaluate.tasks=2"])

    def heed():
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # what a shell starts in the background ignores interrupts, and so would its children

    job = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=heed,
    )
    metrics = tmp_path / "outputs/test/metrics.jsonl"
    try:
        family = processes_after_two_steps(job, metrics)
        assert (
            sum("mcp_grpo.servers" in command for command in commands(family)) > 1
        )  # the servers were really there, beside what they are forked from
        os.kill(job.pid, signal.SIGINT)
        assert job.wait(300) != 0
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive, commands(alive)
    finally:
        for p in (
            [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)] if job.poll() is None else []
        ):
            p.kill()
    steps = [m["step"] for m in read_lines(metrics)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 2
    assert (
        f"stopped after step {len(steps)}; to go on: mcp-grpo train --run test --resume (with papermill: -r run "
        "test -p resume True)"
    ) in (tmp_path / "outputs/test/training.log").read_text()
    assert len(read_lines(tmp_path / "outputs/test/trajectories.jsonl")) >= len(steps) * 2 * 2
    assert not (tmp_path / "outputs/test/result.json").exists()

    done = run_notebook([f"train.steps={len(steps) + 1}"], resume=True)  # all else as it was configured
    assert done.returncode == 0, done.said[-3000:]
    assert [m["step"] for m in read_lines(metrics)] == [*steps, len(steps) + 1] and (
        tmp_path / "outputs/test/result.json"
    ).exists()
    assert len(read_lines(tmp_path / "outputs/test/trajectories.jsonl")) == (len(steps) + 1) * 2 * 2
    as_configured = (tmp_path / "outputs/test/config.yaml").read_text()
    refused = run_notebook(["train.steps=99", "seed=3"], resume=True)
    assert refused.returncode != 0 and "seed: the run has 0, not 3; a resumed run keeps its settings" in refused.said
    assert (tmp_path / "outputs/test/config.yaml").read_text() == as_configured
    assert "steps: 500" in (tmp_path / "outputs/test/config-1.yaml").read_text()


def test_a_run_killed_at_any_moment_becomes_the_run_it_would_have_been(tmp_path):
    "Three moments here; `experiments/bench_hardening.ipynb` has a hundred."

    def play(name, kill_after=None, **more):
        (tmp_path / name).mkdir(exist_ok=True)
        return runs.play(tmp_path / name, kills.parameters(tmp_path, **more), kill_after)

    with kills.Runs() as runs:
        code, seconds = play("whole")
        assert code == 0, (tmp_path / "whole/said").read_text()[-3000:]
        whole = kills.record(tmp_path / "whole")
        assert any(metrics.get("grad_norm") for metrics in whole["metrics"])  # weights were changed
        for number in range(3):
            play(f"killed{number}", seconds * random.uniform(number, number + 1) / 3)
            came_to = kills.stage(tmp_path / f"killed{number}")
            code, _ = play(f"killed{number}", resume=True)
            assert code == 0, f"killed at {came_to}: " + (tmp_path / f"killed{number}/said").read_text()[-3000:]
            assert kills.differences(whole, tmp_path / f"killed{number}") == [], came_to


def test_make_train_is_the_command():
    plan = subprocess.run(
        ["make", "-n", "train", "RUN=x", "ARGS=--steps 3"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert plan.endswith(".venv/bin/mcp-grpo train --mode cpu --run x --steps 3\n")


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGHUP])
def test_what_ends_the_command_ends_the_run(ended_by, tmp_path):
    "Killed, or its terminal closed: no process goes on, what was done is kept, and a report shows it."
    settings = ",".join(
        [*TINY, "train.steps=500", "servers.transport=stdio", "evaluate.tasks=2", "train.checkpoint_every=1"]
    )
    command = [sys.executable, "-m", "mcp_grpo.cli", "train", "--run", "test", "--set", settings]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def heed():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what nohup starts ignores it, and so would its children

    said = tmp_path / "said"
    with said.open("w") as file:
        job = subprocess.Popen(
            command,
            cwd=tmp_path,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed,
            env=environment,
        )
    metrics = tmp_path / "outputs/test/metrics.jsonl"
    try:
        family = processes_after_two_steps(job, metrics)
        assert sum("mcp_grpo.servers" in command for command in commands(family)) > 1
        job.send_signal(ended_by)
        assert job.wait(300) == (130 if ended_by == signal.SIGHUP else -9), said.read_text()[-3000:]
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive, commands(alive)
    finally:
        for p in (
            [psutil.Process(job.pid), *psutil.Process(job.pid).children(recursive=True)] if job.poll() is None else []
        ):
            p.kill()
    steps = len(read_lines(metrics))
    told = run([sys.executable, "-m", "mcp_grpo.cli", "report", "outputs/test"], tmp_path, env=environment)
    assert (
        f"test stopped after {steps} of 500 steps, without a result; to go on: mcp-grpo train --run test --resume"
        in " ".join(told.stdout.split())
    ), told.said
    assert "data:image/png;base64" in (tmp_path / "outputs/test/report.html").read_text()


def test_reports_written_at_once_do_not_meet(tmp_path):
    "Two from one working folder: each kernel has sockets of its own, and none of it shows."
    for name in ("one", "other"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
        save_config(load_config(run=name), tmp_path / "outputs" / name / "config.yaml")
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "mcp_grpo.cli", "report", f"outputs/{name}"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "other")
    ]
    seen = set()
    while any(job.poll() is None for job in jobs):
        seen |= {path.name for path in tmp_path.iterdir()}
        time.sleep(0.1)
    for name, job in zip(("one", "other"), jobs):
        said = job.communicate(timeout=300)[0]
        assert job.returncode == 0 and "IPKernelApp" not in said, said
        assert (tmp_path / f"outputs/{name}/report.html").is_file()
    assert seen == {"outputs"}


def test_a_reader_that_leaves_ends_the_run(tmp_path):
    "As in `mcp-grpo train ... | head -2`."
    words = (
        f"{sys.executable} -m mcp_grpo.cli train --run test --set "
        f"{','.join([*TINY, 'train.steps=500', 'evaluate.tasks=2'])} | head -2"
    )
    done = run(["bash", "-o", "pipefail", "-c", words], tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 141 and "Traceback" not in done.said and len(done.stdout.splitlines()) == 2
