"""Engines that are left behind on purpose: they sample with older weights than the policy's, and a proof must say so.

`python tests/left_behind.py` prints, for each way of leaving an engine behind, what named it, and for engines that
follow, what was proved. The remote engine's server is a real `vllm serve` on this processor."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import torch
from mcp_grpo.aio import run_sync
from mcp_grpo.config import asset, load_config
from mcp_grpo.model.policy import Plan, Policy, Weights, open_policy
from mcp_grpo.rollout.engine import EngineError
from mcp_grpo.rollout.remote import RemoteEngine, open_remote

sys.path.insert(0, str(Path(__file__).resolve().parent))
import unhealthy

VLLM = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
OPTIONS = "--dtype float32 --enforce-eager --max-model-len 512 --block-size 32 --no-enable-chunked-prefill "
OPTIONS += "--max-num-batched-tokens 2048 --enable-lora --max-lora-rank 16 --logprobs-mode processed_logprobs"


# ---- the engine in this process


def without_updates(trainer) -> None:
    "The engine hears of no update."

    async def nothing(weights: Weights) -> None:
        pass

    trainer.engine.update = nothing


HF = {
    "hf: no update reaches it": unhealthy.Fault(prepare=without_updates),
    "hf: it reports the new version, and samples with old weights": unhealthy.FAULTS["stale_sampler (old_weights)"],
}


def of_hf(name: str) -> str:
    "What is said of a run whose engine is left behind; empty: nothing that names it."
    fault = HF[name]
    settings = ",".join(filter(None, (unhealthy.SMALL, fault.settings)))
    said = unhealthy.verdicts(fault.steps, settings=settings, fault=fault)
    found = [f"{verdict} at step {step}" for step, verdict, _ in said if verdict.startswith("stale_sampler")]
    return found[0] if found else ""


def of_healthy_hf() -> str:
    "What is said of the same run if the engine follows."
    said = unhealthy.verdicts(4, settings=unhealthy.SMALL, fault=unhealthy.Fault())
    return "; ".join(verdict for _, verdict, _ in said if verdict.startswith("stale_sampler"))


# ---- the engine on other machines


def serve(*more: str) -> tuple[subprocess.Popen, str]:
    "Start a server, with more options; return its process and its address once it answers."
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(asset("tiny")), "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [sys.executable, *words, "--port", str(port), *OPTIONS.split(), *more],
        env=os.environ | VLLM,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 1200
    while process.poll() is None and time.monotonic() < until:
        try:
            httpx2.get(url + "/v1/models", trust_env=False).raise_for_status()
            return process, url
        except httpx2.HTTPError:
            time.sleep(0.5)
    end(process)
    raise RuntimeError("vllm serve did not start")


def end(process: subprocess.Popen) -> None:
    "Kill a server and the engine that it started."
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def move(policy: Policy, size: float) -> None:
    "Change the weights as a step would."
    with torch.no_grad():
        for p in policy.trainable().values():
            p.add_(size * torch.randn_like(p))
    policy.version += 1


def keep_adapter(engine: RemoteEngine) -> None:
    "From now on the server loads the adapter of the last update under the name of the next."
    kept, load = Path(tempfile.mkdtemp()) / "kept", engine.load
    shutil.copytree(next(engine.folder.glob("policy-*")), kept)

    async def load_old(server, folder, kind):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        await load(server, folder, kind)

    engine.load = load_old


def keep_weights(engine: RemoteEngine) -> None:
    "From now on the server is not told to load weights."

    async def nothing(server, folder, kind):
        pass

    engine.load = nothing


def keep_cache(engine: RemoteEngine) -> None:
    "From now on the server loads the weights, and keeps what it computed with the old ones."

    async def load(server, folder, kind):
        command = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        await server.post(engine.http(), "/collective_rpc", command)

    engine.load = load


REMOTE: dict[str, tuple[str, Callable]] = {
    "vllm serve: the adapter of the update before": ("lora", keep_adapter),
    "vllm serve: full weights not loaded": ("full", keep_weights),
    "vllm serve: full weights loaded, cached keys and values kept": ("full", keep_cache),
}


def of_remote(url: str, kind: str, leave_behind: Callable) -> tuple[str, dict]:
    "What the engine says when it is left behind, and the proofs of the updates before."
    settings = f"rollout.engine=remote,rollout.deterministic=false,model.device=cpu,model.weights={kind}"
    cfg = load_config("lora" if kind == "lora" else "cpu", settings)
    cfg.rollout.endpoints = [url]
    policy = open_policy(cfg, Plan("cpu", "float32"))
    torch.manual_seed(0)
    engine = open_remote(cfg, policy)
    prompts = [policy.tokenizer.encode(f"What is the last price of QZX{c}? " * 8) for c in "AB"]
    size = 0.02 if kind == "lora" else 0.003
    for _ in range(2):
        run_sync(engine.update, policy.publish(False, prompts))
        move(policy, size)
    proofs = dict(engine.proofs)
    leave_behind(engine)
    try:
        run_sync(engine.update, policy.publish(False, prompts))
    except EngineError as error:
        return str(error), proofs
    return "", proofs


def results(remote: bool = True) -> dict:
    "What named each engine that was left behind, what was proved of those that follow, and false alarms."
    named, proved = {name: of_hf(name) for name in HF}, {}
    if remote:
        process, url = serve()
        try:
            for name, (kind, leave_behind) in REMOTE.items():
                named[name], proved[name] = of_remote(url, kind, leave_behind)
        finally:
            end(process)
    return {"named": named, "proved": proved, "false": of_healthy_hf()}


if __name__ == "__main__":
    print(json.dumps(results("hf" not in sys.argv), indent=1))
