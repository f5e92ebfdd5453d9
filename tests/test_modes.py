"""The modes: which are refused here and how, the specification's settings, a base of 4 bits, and weights spread over
two processes."""

import json, math, os, subprocess, sys, time
from pathlib import Path

import hosts
import psutil
import pytest
import torch
from conftest import ROOT, needs, run, train_command

from mcp_grpo.aio import run_sync
from mcp_grpo.config import load_config
from mcp_grpo.model.policy import Machine, Plan, PolicyError, open_policy
from mcp_grpo.plan import check_algorithm, plan_run
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.rows import open_hf


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_mode_that_needs_a_gpu_is_refused_in_one_sentence_before_a_model_is_loaded(tmp_path):
    done = run(train_command(tmp_path, {"mode": "gpu", "model": "no/such/model", "dry_run": True}), tmp_path)
    assert (
        done.returncode != 0
        and "PolicyError: model.device is 'cuda', which is not there: this machine has cpu" in done.said
    )
    with pytest.raises(PolicyError, match="'cuda', which is not there"):
        plan_run(load_config("gpu"))


def test_the_plan_for_a_pretended_gpu():
    gpu = Machine(
        ("cuda", "cpu"), gpus=4, bfloat16=True, packages=frozenset({"peft", "bitsandbytes", "deepspeed", "vllm"})
    )
    plans = {mode: plan_run(load_config(mode), gpu) for mode in ("cpu", "gpu", "lora", "vllm", "full")}
    assert {mode: (p.device, p.dtype, p.quantization, p.processes) for mode, p in plans.items()} == {
        "cpu": ("cuda", "float32", "none", 0),
        "gpu": ("cuda", "float32", "none", 0),
        "lora": ("cuda", "bfloat16", "nf4", 0),
        "vllm": ("cuda", "bfloat16", "none", 0),
        "full": ("cuda", "bfloat16", "none", 4),
    }


def test_the_preset_reference_holds_the_settings_of_the_specification():
    cfg = load_config("reference").train
    check_algorithm(load_config("reference"))
    found = (
        cfg.lr,
        cfg.micro_batch,
        cfg.accumulation,
        cfg.lr_schedule.warmup,
        cfg.max_epochs,
        cfg.kl.weight,
        cfg.clip.low,
        cfg.clip.high,
        cfg.advantage.gamma,
        cfg.advantage.gae_lambda,
        cfg.value_head.weight,
        cfg.grad_clip,
    )
    assert found == (5e-6, 1, 8, 100, 3, 0.01, 0.2, 0.2, 0.99, 0.95, 0.5, 1.0) and (
        cfg.reference.kind,
        cfg.reference.every,
    ) == ("ema", 100)


def test_a_base_of_4_bits_learns_and_is_exported_whole(tmp_path):
    needs("bitsandbytes")
    cfg = load_config("lora", "model.quantization=nf4,model.device=cpu")
    policy = open_policy(cfg, plan_run(cfg))
    ids = torch.arange(20)[None]
    policy.model(input_ids=ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in policy.trainable().values()) and policy.causal.is_quantized
    policy.save(tmp_path / "model")
    policy.save_adapter(tmp_path / "adapter")
    assert not hasattr(
        open_policy(load_config("cpu", model={"name": str(tmp_path / "model")}), Plan("cpu", "float32")).model,
        "quantization_method",
    )
    assert (tmp_path / "adapter/adapter_model.safetensors").exists()


def test_a_base_of_4_bits_is_sampled_in_its_own_precision():
    "There is no copy of a quantized base in rollout.dtype: it has one precision, that of its products."
    needs("bitsandbytes")
    cfg = load_config("lora", "model.quantization=nf4,model.device=cpu,rollout.dtype=float16")
    policy = open_policy(cfg, plan_run(cfg))
    engine = open_hf(cfg, policy)
    assert engine.model is policy.model is policy.sampler and policy.causal.is_quantized
    completion = run_sync(engine.generate, [1, 2, 3], Sampling(max_new_tokens=4), ("run", 0, "task", 0, 0))
    assert len(completion.ids) == len(completion.logprobs) > 0 and all(map(math.isfinite, completion.logprobs))


def test_two_processes_change_the_weights_as_one_does_resume_what_it_saved_and_skip_what_is_not_finite_together(
    tmp_path,
):
    needs("deepspeed")
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    alone = [sys.executable, str(ROOT / "tests/sharded.py"), str(tmp_path), "moving"]
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *alone[1:]]
    for command in (alone, ranks):
        done = run(command, tmp_path, env=environment)
        assert done.returncode == 0, done.said
    assert len([*tmp_path.glob("left-*-of-*")]) == 3  # what is to be done at a process's end was done by each
    found = json.loads((tmp_path / "found-2.json").read_text())
    assert found["moving"]["change"] < 1e-4 and found["moving"]["crossed"] < 1e-4 and found["moving"]["resumed"] == 0
    for fault in ("reward", "loss", "gradient"):
        said = [[fault], [fault], [fault + ", critical"]]
        assert found["not finite"][fault] == {
            "skipped": [1, 1, 1],
            "moved": [],
            "said": said,
            "agree": True,
            "stood": [],
        }


def renamed_tasks(folder: Path) -> list[str]:
    "Settings for a few tasks whose servers have other names in the file than here, and for what they are here."
    named = {"prices": "polygon", "chat": "slack", "company": "fmp"}
    there = {here: name for name, here in named.items()}
    for part, file in (("train", "train"), ("heldout", "validation")):
        rows = json.loads((ROOT / f"data/processed/{file}.json").read_text())
        for row in rows:
            for call in row["reward_spec"]["ground_truth"]["tool_sequence"]:
                call["server"] = there.get(call["server"], call["server"])
            for tool in row["extra_info"].get("tools", ()):
                tool["server"] = there.get(tool["server"], tool["server"])
            check = row["reward_spec"]["ground_truth"].get("state_check")
            if check:
                check["server"] = there.get(check["server"], check["server"])
        (folder / f"{part}.json").write_text(json.dumps(rows[::30]))
    return [
        f"data.heldout={folder / 'heldout.json'}",
        "data.server_names={" + ", ".join(f"{name}: {here}" for name, here in named.items()) + "}",
    ]


def test_workers_read_renamed_servers_and_a_warm_start_that_is_the_whole_run_is_resumed_after_a_kill(tmp_path):
    needs("deepspeed")
    settings = [*renamed_tasks(tmp_path), "train.warmstart=6", "train.steps=0", "evaluate.tasks=2"]
    given = {"mode": "full", "tasks": str(tmp_path / "train.json")}
    environment = os.environ | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        train_command(tmp_path, given, settings), cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    log, out = tmp_path / "stdout", tmp_path / "outputs/test"
    while job.poll() is None and not (log.exists() and "warm start    1/6" in log.read_text()):
        time.sleep(0.1)
    assert job.poll() is None, log.read_text()[-3000:]
    for process in [*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)]:
        process.kill()
    job.wait()
    assert not (out / "result.json").exists()
    done = run(train_command(tmp_path, given | {"resume": True}, settings), tmp_path, env=environment)
    assert done.returncode == 0, done.said[-3000:]
    result = json.loads((out / "result.json").read_text())
    assert (result["steps"], result["warmstart"]["steps"]) == (0, 6) and (out / "model").is_dir()
    assert result["heldout"]["after"] == result["warmstart"]["heldout"]


def test_a_host_that_is_cut_off_ends_the_run_on_both_hosts(tmp_path):
    needs("deepspeed")
    if why := hosts.why_not():
        pytest.skip(why)
    with hosts.two_hosts() as pair:
        cut = hosts.trained(pair, tmp_path, "cut", 6, cut_after=1)
    said = [(tmp_path / f"host-{n}.log").read_text() for n in (0, 1)]
    assert cut["codes"] == [1, 1] and cut["left"] == 0 and cut["steps"] < 6, said
    assert cut["seconds"] < 120, said  # quietly 25: this is a hang
    for n in (0, 1):
        assert f"node {1 - n} was silent for 20 s" in said[n]
    joined = run(
        [Path(sys.executable).with_name("mcp-grpo"), "join", tmp_path / "outputs/cut", "--node", "2"], tmp_path
    )
    assert joined.returncode == 1 and "a number from 1 to 1 for those that join" in joined.said
