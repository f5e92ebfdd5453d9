"A GGUF file that this program writes is converted once, also by two processes at a time and after a kill."

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, run
from templates import tokenizer_of
from tokenizers import pre_tokenizers

CONVERT = "from mcp_grpo.model.policy import find_model; print(find_model('small/model.gguf'))"


@pytest.fixture
def folder(tmp_path):
    "A folder with a small model of random weights, and a GGUF file that the command has made of it."
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = copy.deepcopy(tokenizer_of("qwen3"))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, head_dim=8)
    config = AutoConfig.for_model("qwen3", vocab_size=len(tokenizer), num_key_value_heads=2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "small")
    tokenizer.save_pretrained(tmp_path / "small")
    done = run([sys.executable, "-m", "mcp_grpo.cli", "export", "small", "--as", "gguf", "--dtype", "f32"], tmp_path)
    assert done.returncode == 0 and "small/model.gguf: the trained model, 0 MB" in done.stdout, done.said
    return tmp_path


def converting(folder: Path) -> subprocess.Popen:
    "Start a process that converts the file."
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, "-c", CONVERT], cwd=folder, env=environment, **pipes)


def test_two_processes_convert_a_file_once(folder):
    started = [converting(folder) for _ in range(2)]
    said = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    [made] = {out.splitlines()[-1] for out, _ in said}
    assert Path(made, "model.safetensors").is_file()
    assert sum("converting the model, once; small" in errors for _, errors in said) == 1


def test_a_killed_conversion_is_made_again(folder):
    process, models = converting(folder), folder / "cache/mcp_grpo/models"
    while process.poll() is None and not list(models.glob("*.part")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = converting(folder)
    said, errors = again.communicate(timeout=600)
    assert again.returncode == 0 and "converting the model, once" in errors, errors
    assert Path(said.splitlines()[-1], "model.safetensors").is_file() and not list(models.glob("*.part"))
