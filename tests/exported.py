"""Episodes of the packaged model, written for other programs and read again.

`python tests/exported.py [EPISODES]` prints what is invalid, what is lost, and what comes back different."""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import atif
from mcp_grpo.client.pool import open_pool
from mcp_grpo.config import asset, project_root
from mcp_grpo.interop.episodes import _origin, _tasks_of, export_episodes
from mcp_grpo.observe.view import read_episodes
from mcp_grpo.rollout.collect import collect_sync
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.messages import Scribe, policy_spans, read_recorded, recorded_turns, turns_of

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 4  # attempts at each task


def evaluated(folder: Path, episodes: int) -> Path:
    "Evaluate the packaged model with the command; the folder of the evaluation."
    words = ["evaluate", asset("tiny"), "--rounds", ROUNDS, "--number", -(-episodes // ROUNDS), "--set", "seed=1"]
    command = [sys.executable, "-m", "mcp_grpo.cli", *map(str, words)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    [place] = (folder / "outputs/evaluations").iterdir()
    return place


def invalid(place: Path, out: Path) -> tuple[int, list[str]]:
    "Export episodes as ATIF: how many documents there are, and those that the package refuses or that lost a token."
    export_episodes(place, out, "atif")
    lines, wrong = out.read_text(encoding="utf-8").split("\n")[:-1], []
    for line, episode in zip(lines, read_episodes(place), strict=True):
        try:
            document = atif.Trajectory.model_validate_json(line)
        except ValueError as error:
            wrong.append(f"{episode.task_id}: {error}")
            continue
        told = json.loads(line)
        metrics = [step["metrics"] for step in told["steps"] if "metrics" in step]
        spans = policy_spans(episode)
        if [one["completion_token_ids"] for one in metrics] != [episode.ids[span.start : span.end] for span in spans]:
            wrong.append(f"{episode.task_id}: other tokens")
        if [one["logprobs"] for one in metrics] != [episode.logprobs[span.start : span.end] for span in spans]:
            wrong.append(f"{episode.task_id}: other logprobs")
        calls = [call for step in told["steps"] for call in step.get("tool_calls", ())]
        if (
            len(calls) != len(episode.outcome.events)
            or told["final_metrics"]["extra"]["reward"] != episode.outcome.reward
        ):
            wrong.append(f"{episode.task_id}: other calls or reward")
        assert document.schema_version == "ATIF-v1.8"
    return len(lines), wrong


def returned(place: Path, out: Path) -> dict:
    """Export episodes as messages, read them and play them again: those that come back with other tokens, masks or
    rewards. Left out are those with a turn that could not be read, which nobody should learn, and those whose answer
    stands without its tags, or with a turn of other tokens than its text has by the tokenizer: messages hold neither
    tags nor tokens."""
    export_episodes(place, out)
    episodes, recorded = read_episodes(place), read_recorded(out)
    _, files, cfg, chat = _origin(place, "", "")
    tasks = _tasks_of(episodes, files, cfg)
    scripts, whole = defaultdict(list), defaultdict(list)
    unread = own_form = 0
    for episode, one in zip(episodes, recorded, strict=True):
        turns = turns_of(episode, chat)
        if any(turn.malformed or turn.truncated for turn in turns) or episode.outcome.end != "answer":
            unread += 1
            continue
        sampled = [episode.ids[span.start : span.end] for span in policy_spans(episode)]
        tagged = "<answer>" in chat.tokenizer.decode(sampled[-1])
        if not tagged or [chat.turn_ids(turn) for turn in turns] != sampled:
            own_form += 1
            continue
        found = recorded_turns([one], [tasks[episode.task_id]])
        scripts[episode.task_id] += found[episode.task_id]
        whole[episode.task_id].append(episode)
    wanted = [tasks[name] for name in whole for _ in whole[name]]
    with open_pool(cfg, project_root()) as pool:
        longest = max(len(episode.ids) for episode in episodes) + 512
        sampling = Sampling(0.0, longest)
        groups = collect_sync(wanted, Scribe(scripts, chat), pool, chat, sampling, run="oracle", max_tokens=longest)
    again = iter(group[0] for group in groups)
    different = []
    for name in whole:
        for before, after in zip(whole[name], again):
            parts = {
                "ids": before.ids == after.ids,
                "mask": list(before.sampled) == list(after.sampled),
                "reward": before.outcome.reward == after.outcome.reward,
            }
            different += [f"{name}: {part}" for part, equal in parts.items() if not equal]
    return {"episodes": len(wanted), "different": different, "unread": unread, "own form": own_form}


def results(episodes: int) -> dict:
    "What came of so many episodes, or a few more."
    with tempfile.TemporaryDirectory() as folder:
        place = evaluated(Path(folder), episodes)
        documents, wrong = invalid(place, Path(folder) / "atif.jsonl")
        return {"documents": documents, "invalid": wrong} | returned(place, Path(folder) / "messages.jsonl")


if __name__ == "__main__":
    print(json.dumps(results(int(sys.argv[1]) if len(sys.argv) > 1 else 240)))
