"""Runs through the Tinker API: on the small server of `tinker_twin.py`, with a kill and a resume, an engine that is
left behind and a server that goes; and on SkyRL's own server, where `make skyrl` has installed it."""

import json
import threading
import time

import kills
import psutil
import pytest
from conftest import TINY, needs

needs("tinker")

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mcp_grpo import Run
from mcp_grpo.aio import run_sync
from mcp_grpo.client.pool import together
from mcp_grpo.config import asset, load_config
from mcp_grpo.env.episode import Outcome
from mcp_grpo.errors import UserError
from mcp_grpo.rollout.engine import EngineError, Sampling
from mcp_grpo.rollout.served import open_served
from mcp_grpo.rollout.tinker import TinkerEngine
from mcp_grpo.rollout.trajectory import Trajectory
from mcp_grpo.train.tinker import TinkerLearner
from skyrl_server import SKYRL, skyrl
from tinker_twin import Twin

SMALL = [*TINY, "train.steps=3", "train.tasks_per_step=1", "rollout.samples=4", "evaluate.tasks=2"]


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def twin():
    server = Twin(asset("tiny"), averages=True)  # as SkyRL does
    yield server
    server.stop()


def settings(twin, *more) -> dict:
    return {"overrides": ",".join([*SMALL, f"rollout.endpoints=[{twin.url}]", "train.checkpoint_every=1", *more])}


def test_a_run_that_is_killed_and_resumed_becomes_the_run_that_was_left_alone(twin, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", twin.url)
    left, killed = (tmp_path / name for name in ("left", "killed"))
    with kills.Runs() as runs:

        def play(folder, **more):
            folder.mkdir(exist_ok=True)
            code, _ = runs.play(folder, kills.parameters(tmp_path, ["train.checkpoint_every=1"], mode="tinker", **more))
            return code, (folder / "said").read_text()[-3000:]

        assert (done := play(left))[0] == 0, done[1]
        half = threading.Thread(target=play, args=[killed])
        half.start()
        while len(lines(killed / "outputs/test/metrics.jsonl")) < 2:
            assert half.is_alive(), "the run ended before its second step"
            time.sleep(0.02)
        for process in psutil.Process(runs.server.pid).children():
            process.kill()
        half.join()
        assert len(lines(killed / "outputs/test/metrics.jsonl")) < 4
        assert (done := play(killed, resume=True))[0] == 0, done[1]
    found, expected = (lines(folder / "outputs/test/metrics.jsonl") for folder in (killed, left))
    assert [step["step"] for step in found] == [1, 2, 3, 4]
    for mine, theirs in zip(found, expected):
        for name in ("reward", "success", "tokens_sampled", "loss", "grad_norm", "weights_moved"):
            assert mine.get(name) == pytest.approx(theirs.get(name), abs=1e-6), (mine["step"], name)
    manifest = json.loads((killed / "outputs/test/checkpoints/step-000004/manifest.json").read_text())
    assert manifest["state"] in twin.saved and set(manifest["files"]) == {"config.yaml", "random.safetensors"}
    assert (killed / "outputs/test/model/adapter_model.safetensors").exists()
    assert any(step.get("tokens_sampled") for step in found), "no step learnt"
    assert all(step.get("sampler_gap", 0) < 1e-3 for step in found)


def test_an_engine_that_is_left_behind_is_named(twin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Run("tinker", name="test", **settings(twin)) as training:
        engine, update = training.engine, training.engine.update
        training.evaluate()

        async def only_first(weights):
            if not weights.version:
                await update(weights)

        engine.update = only_first
        steps = list(training.train())
    assert not steps[0].verdicts
    assert {verdict.name for verdict in steps[2].verdicts} >= {"stale_sampler"}
    assert "sampled by version 0 of the weights, but the current version is 2" in str(steps[2].verdicts)


def test_a_server_that_goes_ends_the_run_with_one_sentence_and_keeps_the_steps(twin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mcp_grpo.rollout.served._LOOK", 0.3)
    with Run("tinker", name="test", **settings(twin)) as training, pytest.raises(EngineError, match="not answered for"):
        for _ in training.train():
            twin.stop()
    assert [step["step"] for step in lines(tmp_path / "outputs/test/metrics.jsonl")] == [1]


def test_what_the_api_cannot_do_is_refused_before_a_server_is_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    nowhere = "rollout.endpoints=[http://127.0.0.1:9]"
    for override, sentence in {
        "": "say where the server is, with TINKER_BASE_URL or rollout.endpoints",
        f"{nowhere},model.weights=full": "set model.weights=lora",
        f"{nowhere},train.loss=gspo": "the Tinker API has the losses ppo_clip",
        f"{nowhere},train.kl=0.01": "the Tinker API has no KL term in its losses",
        nowhere: "the Tinker server http://127.0.0.1:9: opening a session failed (it does not answer)",
    }.items():
        with (
            Run("tinker", name="test", overrides=override) as training,
            pytest.raises(UserError) as told,
        ):
            training.evaluate()
        assert sentence in str(told.value)


def episode(prompt: list[int], turn, number: int) -> Trajectory:
    "One sampled turn, rewarded by its number."
    key = ("run", 0, "task", number)
    made = Trajectory.begin(prompt, task_id="task", sample=number, key=key)
    made.append_sampled(turn.ids, turn.logprobs, turn.policy_version)
    made.outcome = Outcome(float(number), {}, True, "answer", [], None)
    return made


@pytest.mark.skipif(not (SKYRL / ".ready").exists(), reason="make skyrl has not been here")
def test_skyrl_samples_learns_keeps_and_exports(tmp_path):
    with skyrl(tmp_path, str(asset("tiny")), sample_max_num_sequences=4, train_micro_batch_size=4) as url:
        cfg = load_config("tinker", f"rollout.endpoints=[{url}],model.lora.rank=8,train.lr=1e-2")
        policy = open_served(cfg)
        engine, prompts = TinkerEngine(policy), [list(range(10, 40)), list(range(50, 90))]
        model = AutoModelForCausalLM.from_pretrained(asset("tiny")).float().eval()

        def exact(model, ids):
            with torch.no_grad():
                logprobs = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
            return logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

        async def turns():
            keys = [("run", 0, "task", sample, 0) for sample in range(4)]
            return await together(lambda key: engine.generate(prompts[0], Sampling(1.0, 8), key), keys)

        sampled = run_sync(turns)
        assert len({tuple(turn.ids) for turn in sampled}) > 1
        for turn in sampled:
            of_turn = exact(model, prompts[0] + turn.ids)[-len(turn.ids) :]
            torch.testing.assert_close(of_turn, torch.tensor(turn.logprobs), atol=1e-3, rtol=0)
        run_sync(engine.update, policy.publish(prompts=prompts))
        learner = TinkerLearner(policy, cfg.train)
        metrics = learner.step([[episode(prompts[0], turn, i) for i, turn in enumerate(sampled)]])
        assert metrics["weights_moved"] > 0.9 and metrics["grad_norm"] > 0 and metrics["sampler_gap_max"] < 1e-3
        run_sync(engine.update, policy.publish())
        assert engine.proofs == {"proved": 2, "unproved": 0}
        scores, state = policy.score(prompts), policy.save_state(1)
        policy.save(tmp_path / "adapter")
        policy.load_state(state)
        assert policy.score(prompts) == scores
        adapted = PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
        torch.testing.assert_close(exact(adapted, prompts[0]), torch.tensor(scores[0]), atol=1e-3, rtol=0)
