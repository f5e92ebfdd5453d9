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
from itertools import groupby
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
    "The generator's output for tasks, and the outcomes of episodes here whose policy takes the generator's turns."
    from left_behind import end, serve

    from mcp_grpo.client.pool import Pool
    from mcp_grpo.client.spec import embedded_specs
    from mcp_grpo.config import asset
    from mcp_grpo.env.scripted import Replay, play_all_sync
    from mcp_grpo.model.policy import open_tokenizer
    from mcp_grpo.rollout.chat import Chat

    process, url = serve("--enable-scale-out")  # opens the endpoint for tokens that SkyRL's client asks
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_tasks(tasks, file := f"{folder}/tasks.json")
            output = run_skyrl(url, str(asset("tiny")), file)
    finally:
        end(process)
    chat, turns = Chat(open_tokenizer(str(asset("tiny")))), {}
    for task, *parts in zip(tasks, *(output[part] for part in ("response_ids", "loss_masks", "stop_reasons"))):
        said = policy_turns(*parts[:2])
        cut = [parts[2] == "length" and turn is said[-1] for turn in said]
        turns[task.task_id] = [chat.parse(turn, truncated=truncated) for turn, truncated in zip(said, cut)]
    with Pool(embedded_specs(["polygon", "fmp", "slack"])) as pool:
        return output, play_all_sync(lambda task: Replay(turns[task.task_id]), tasks, pool)


def policy_turns(response: list[int], mask: list[int]) -> list[list[int]]:
    "The tokens of each turn of the policy, which the loss mask marks."
    parts = groupby(zip(response, mask), key=lambda pair: pair[1])
    return [[token for token, _ in part] for sampled, part in parts if sampled]


def differing(output: dict, own: list) -> list[str]:
    "How episodes of the generator differ from this project's own, and what is wrong with them in itself."
    found = []
    for place, (one, *parts) in enumerate(zip(own, *(output[part] for part in PARTS), strict=True)):
        _, response, mask, rewards, reason, logprobs = parts
        checks = {
            f"reward {sum(rewards)}, ours {one.reward}": sum(rewards) == one.reward,
            f"{len(policy_turns(response, mask))} turns, ours {one.turns}": len(policy_turns(response, mask))
            == one.turns,
            "a reward before the last token": not any(rewards[:-1]),
            "a logprob of a token that was not sampled": not any(
                p for p, sampled in zip(logprobs, mask) if not sampled
            ),
            "a mask that does not begin and end with a turn": mask[0] == mask[-1] == 1,
            f"it ended with {reason}": reason == ("length" if one.end == "truncated" else "stop"),
        }
        found += [f"{place}: {what}" for what, equal in checks.items() if not equal]
    return found


if __name__ == "__main__":
    found = read_guide() if sys.argv[1:] == ["guide"] else generated(*sys.argv[1:])
    print(json.dumps(found | {"version": importlib.metadata.version("skyrl")}))
