"""Episodes that SkyRL's own generator plays here, on a processor, with a policy behind a vLLM server.

`.servers/skyrl_train/bin/python tests/skyrl_generator.py URL MODEL TASKS` reads a task file with SkyRL's data set,
plays each task in `MCPToolEnv` and prints the generator's output as JSON; `guide` instead of the three words reads the
command of the guide as SkyRL's trainer does."""

import asyncio
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp_grpo.task import Task, write_tasks

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".servers/skyrl_train/bin/python"
GUIDE = ROOT / "nbs/guides/comparison.ipynb"
PARTS = ("prompt_token_ids", "response_ids", "loss_masks", "rewards", "stop_reasons", "rollout_logprobs")
LIMITS = ["trainer.max_prompt_length=400", "generator.max_input_length=440"]
LIMITS += ["generator.sampling_params.max_generate_length=72", "generator.sampling_params.temperature=0"]
FAULT = -1.0  # a reward that no episode has


# ---- with SkyRL's packages


def generated(url: str, model: str, tasks: str) -> dict:
    "The generator's output for each task of a file, one episode a task, at temperature 0."
    from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.dataset import PromptDataset
    from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
    from skyrl.train.generators.utils import prepare_generator_input
    from skyrl.utils.tok import get_tokenizer

    from mcp_grpo.interop.skyrl import register_env

    register_env(fault_reward=FAULT)
    cfg = SkyRLTrainConfig.from_cli_overrides([f"trainer.policy.model.path={model}", *LIMITS])
    tokenizer = get_tokenizer(model, padding_side="left")
    rows = PromptDataset(tasks, tokenizer, cfg.trainer.max_prompt_length, num_workers=1)
    sampling = get_sampling_params_for_backend("vllm", cfg.generator.sampling_params)
    chosen = rows.collate_fn([rows[i] for i in range(len(rows))])
    asked, _ = prepare_generator_input(chosen, 1, sampling, "", "train", 0)
    client = RemoteInferenceClient(url, [url], data_parallel_size=1, model_name=model, tokenizer=tokenizer)
    generator = SkyRLGymGenerator(cfg.generator, cfg.environment.skyrl_gym, client, tokenizer)

    async def generate() -> dict:
        output = await generator.generate(asked, disable_tqdm=True)
        await client.aclose()
        return output

    output = asyncio.run(generate())
    return {part: output[part] for part in PARTS}


def read_guide() -> dict:
    "What SkyRL's trainer makes of the command in the guide, whose entry point is imported."
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils import validate_cfg

    cells = json.loads(GUIDE.read_text())["cells"]
    [text] = [text for cell in cells if "skyrl_mcp" in (text := "".join(cell["source"]))]
    module, command = re.search(r"```python\n(.*?)```.*?```\w*\n(.*?)```", text, re.S).groups()
    names = {"__name__": "skyrl_mcp"}
    exec(module, names)
    cfg = SkyRLTrainConfig.from_cli_overrides(re.findall(r"[\w.]+=\S+", command))
    validate_cfg(cfg)
    return {"main": callable(names["main"]), "data": cfg.data.train_data, "model": cfg.trainer.policy.model.path}


# ---- with this project's


def run_skyrl(*words: str) -> dict:
    "What this file prints with SkyRL's packages."
    environ = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([PYTHON, __file__, *words], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def both(tasks: list[Task]) -> tuple[dict, list]:
    "The generator's output for tasks, and this project's own episodes of the same policy."
    from left_behind import end, serve

    from mcp_grpo.client.pool import Pool
    from mcp_grpo.client.spec import embedded_specs
    from mcp_grpo.config import asset, load_config
    from mcp_grpo.model.policy import Plan, open_policy
    from mcp_grpo.rollout.chat import Chat
    from mcp_grpo.rollout.collect import collect_sync
    from mcp_grpo.rollout.engine import Sampling
    from mcp_grpo.rollout.hf import HFEngine

    process, url = serve("--enable-scale-out")  # opens the endpoint for tokens that SkyRL's client asks
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_tasks(tasks, file := f"{folder}/tasks.json")
            output = run_skyrl(url, str(asset("tiny")), file)
    finally:
        end(process)
    policy = open_policy(load_config("cpu", "model.device=cpu"), Plan("cpu", "float32"))
    with Pool(embedded_specs(["polygon", "fmp", "slack"])) as pool:
        chat, sampling = Chat(policy.tokenizer), Sampling(0.0, 72)
        groups = collect_sync(tasks, HFEngine(policy.model), pool, chat, sampling)
    return output, [group[0] for group in groups]


def differing(output: dict, own: list) -> list[str]:
    "How episodes of the generator differ from this project's own: reward, tokens, loss mask, logprobs."
    found = []
    for one, *parts in zip(own, *(output[part] for part in PARTS), strict=True):
        prompt, response, mask, rewards, reason, logprobs = parts
        end = one.prompt_len + len(response)
        checks = {
            f"reward {sum(rewards)}, ours {one.outcome.reward}": sum(rewards) == one.outcome.reward,
            "a reward before the last token": not any(rewards[:-1]),
            "the prompt": prompt == one.ids[: one.prompt_len],
            "the tokens": response == one.ids[one.prompt_len :],
            "the loss mask": mask == one.sampled[one.prompt_len :],
            "the reason why it ended": reason == "stop",
            "logprobs": max(abs(a - b) for a, b in zip(logprobs, one.logprobs[one.prompt_len : end])) < 1e-3,
        }
        found += [f"{one.task_id}: {what}" for what, equal in checks.items() if not equal]
    return found


if __name__ == "__main__":
    found = read_guide() if sys.argv[1:] == ["guide"] else generated(*sys.argv[1:])
    print(json.dumps(found | {"version": importlib.metadata.version("skyrl")}))
