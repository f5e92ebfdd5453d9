"""What trackers get of a run, read back from where each of them keeps it.

`python tests/tracked.py traces FOLDER` writes 16 episodes to Weave, that is, to a recording server of this machine;
`python tests/tracked.py metrics FOLDER` makes a run whose last update fails, with every tracker that is installed;
`python tests/tracked.py train FOLDER [TRACKERS]` trains the packaged model for two steps and prints a digest of the
result. Each prints JSON."""

import base64, contextlib, hashlib, json, os, sqlite3, struct, sys
from pathlib import Path

from recording import recording

from mcp_grpo import Run
from mcp_grpo.config import load_config
from mcp_grpo.observe.track import RunLog, open_trackers, read_lines

SMALL = dict(tasks_per_step=2, samples=2, evaluate_tasks=4, say=lambda line: None)
KEY = "sk-desk-" + base64.b32encode(b"of no use to anybody").decode()
DESK = """
import os, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
server = MCPServer("desk", log_level="CRITICAL")
@server.tool()
def get_ticket(id: str) -> str:
    if id == "T15":
        os._exit(1)
    if id.endswith("3"):
        raise ToolError(f"no ticket {id}; asked with {os.environ['DESK_API_KEY']}")
    time.sleep(0.002 * int(id[1:]))
    return f"{id} is open; asked with {os.environ['DESK_API_KEY']}"
server.run("stdio")
"""  # a server that repeats its key, refuses some calls, and dies at one


def play_at_desk(folder: Path):
    "Play 16 prepared episodes with two or three calls each; the last one ends by a fault."
    from mcp_grpo.client.pool import Pool
    from mcp_grpo.client.spec import ServerSpec
    from mcp_grpo.env.action import Action, Call
    from mcp_grpo.env.offer import complete_tasks_sync
    from mcp_grpo.plan import check_model
    from mcp_grpo.rollout.chat import open_chat
    from mcp_grpo.rollout.collect import collect_sync
    from mcp_grpo.rollout.engine import Sampling
    from mcp_grpo.rollout.messages import Scribe
    from mcp_grpo.task import Task

    (folder / "desk.py").write_text(DESK)
    os.environ["DESK_API_KEY"] = KEY
    passed = ["DESK_API_KEY", "PYTHONPATH"]
    words = [str(folder / "desk.py")]
    spec = ServerSpec("desk", command=sys.executable, args=words, pass_env=passed, isolation="process")
    cfg, rows, scripts = load_config("cpu", run="traced"), [], {}
    for number in range(16):
        rows.append({"task_id": f"t{number}", "question": f"Is T{number} open?", "answer": "open", "servers": ["desk"]})
        asked = [f"T{number}", *(["T3"] if number % 2 else []), "T1"]
        calls = [Action([Call("get_ticket", {"id": id})]) for id in asked]
        scripts[f"t{number}"] = [[*calls, Action(answer="open")]]
    chat = open_chat(cfg, check_model(cfg))
    with Pool({"desk": spec}) as pool:
        tasks = complete_tasks_sync([Task.from_row(row) for row in rows], pool, "rows", ["desk"])
        played = collect_sync(tasks, Scribe(scripts, chat), pool, chat, Sampling(0.0, 64), max_tokens=4096)
    return cfg, [episode for [episode] in played]


def traces(folder: Path) -> dict:
    "Write episodes to Weave, and return what the recording server got beside what they hold."
    cfg, episodes = play_at_desk(folder)
    with recording() as server:
        os.environ |= {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": server.address, "WANDB_MODE": "disabled"}
        os.environ |= {"WF_TRACE_SERVER_URL": f"{server.address}/traces", "WEAVE_PROJECT": "me/desk"}
        with RunLog(folder / "run", cfg, echo=lambda line: None, trackers=open_trackers("", cfg, folder)) as log:
            names = [tracker.name for tracker in log.trackers]
            log.rollout(1, {"reward": 0.5}, episodes)
        bodies = [body for *_, body in server.received]
        got = [json.loads(body)["batch"] for method, path, _, body in server.received if path.endswith("/complete")]
    held = json.dumps([event.content for episode in episodes for event in episode.outcome.events])
    return {
        "names": names,
        "calls": [call for batch in got for call in batch],
        "events": {
            episode.task_id: [
                {"arguments": event.arguments, "content": event.content, "fault": event.fault, "seconds": event.seconds}
                for event in episode.outcome.events
            ]
            for episode in episodes
        },
        "secrets": sum(body.count(KEY.encode()) for body in bodies),
        "redacted": held.count("[redacted]"),
    }


def wandb_records(data: bytes):
    """The records in a file of wandb, in LevelDB's log format: blocks of 32 KiB after 7 bytes of header, with a
    checksum, a length and a type before each piece."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768  # the rest of the block is too small for a piece
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""


Points = dict[str, dict[int, float]]  # metric -> step -> value


def points(rows: list[dict]) -> Points:
    "The numbers of rows, each of which names its step; a later row of a step replaces the numbers of an earlier one."
    found: Points = {}
    for row in rows:
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "step":
                found.setdefault(name, {})[int(row["step"])] = value
    return found


def flat(values: dict, before: str = "") -> dict:
    "Nested values under names such as seconds/generation."
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{before}{name}/") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def from_wandb(folder: Path) -> Points:
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # waits until wandb's own process has written everything
    rows = []
    for data in wandb_records(next(folder.glob("wandb/offline-run-*/*.wandb")).read_bytes()):
        items = Record.FromString(data).history.item
        row = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
        rows += [{name: value for name, value in flat(row).items() if not name.startswith("_")}] if row else []
    return points(rows)


def from_tensorboard(folder: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = (folder / "tensorboard").glob("events.*")
    events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}


def from_trackio(folder: Path) -> Points:
    [file] = Path(os.environ["TRACKIO_DIR"]).rglob("*.db")
    with contextlib.closing(sqlite3.connect(file)) as database:
        rows = database.execute("select step, metrics from metrics order by id").fetchall()
    return points([{**json.loads(metrics), "step": step} for step, metrics in rows])


def from_mlflow(folder: Path) -> Points:
    from mlflow import MlflowClient

    client = MlflowClient()
    [experiment] = client.search_experiments(filter_string="name = 'mcp_grpo'")
    [found] = client.search_runs([experiment.experiment_id])
    return {
        name: {point.step: point.value for point in client.get_metric_history(found.info.run_id, name)}
        for name in found.data.metrics
    }


READERS = {"wandb": from_wandb, "tensorboard": from_tensorboard, "trackio": from_trackio, "mlflow": from_mlflow}


def metrics(folder: Path) -> dict:
    "Make a run whose third update fails, and return what each tracker and the files of the run hold."
    from accelerate.tracking import get_available_trackers

    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "TRACKIO_DIR": str(folder / "trackio")}
    os.environ |= {"MLFLOW_TRACKING_URI": (folder / "mlflow").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    names = [name for name in READERS if name in map(str, get_available_trackers())]
    played = []
    with Run("cpu", name="tracked", steps=3, report_to=",".join(names), **SMALL) as run:
        try:
            for step in run.train():
                if step.step == 2:
                    run.trainer.improve = lambda *values: 1 / 0
        except ZeroDivisionError:
            played.append(step.step + 1)
        lines = read_lines(run.folder / "metrics.jsonl")
        folder = run.folder
    return {
        "own": points([flat(line) for line in lines]),
        "failed": played,
        "trackers": {name: READERS[name](folder) for name in names},
        "log": (folder / "training.log").read_text(),
    }


def train(folder: Path, report_to: str = "") -> dict:
    "Train for two steps, and return digests of the weights and the episodes, and the figures."
    with Run("cpu", name="digested", steps=2, report_to=report_to, **SMALL) as run:
        for _ in run.train():
            pass
        run.save()
        run.report()
        folder = run.folder
    result = json.loads((folder / "result.json").read_text())
    episodes = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    sampled = json.dumps([[one["ids"], one["logprobs"], one["outcome"]["reward"]] for one in episodes])
    return {
        "weights": hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest(),
        "episodes": hashlib.sha256(sampled.encode()).hexdigest(),
        "figures": [result["reward_curve"], result["heldout"]],
        "tracked": [line for line in (folder / "training.log").read_text().splitlines() if line.startswith("tracked")],
    }


if __name__ == "__main__":
    command, place, *more = sys.argv[1:]
    place = Path(place).resolve()
    os.chdir(place)
    printed, sys.stdout = sys.stdout, sys.stderr
    found = {"traces": traces, "metrics": metrics, "train": train}[command](place, *more)
    print(json.dumps(found), file=printed)
