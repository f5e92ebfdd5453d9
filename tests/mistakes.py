"""Plausible mistakes and interruptions at the command line, and what each must come to: one sentence, an exit status
above 0, no traceback, and no process left.

The test plays a share of them, the benchmark all. Each is one run of the real command, in a folder of its own, below a
small process that adopts whatever the command leaves behind: `python mistakes.py COMMAND...` is that process.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 240  # of one command, on a busy machine
FMP = {"server": "mcp_grpo.servers.fmp:make_server", "isolation": "shared"}


@dataclass(frozen=True)
class Mistake:
    "One run of the command."

    words: str | list[str]  # after mcp-grpo; a text is split at spaces
    says: str = ""  # what the sentence holds, as a regular expression
    files: dict[str, str] = field(default_factory=dict)  # name -> contents, beside those of `furnish`
    sends: str = ""  # a signal
    when: str | float = ""  # once this is in the output, or after so many seconds

    @property
    def name(self) -> str:
        words = self.words if isinstance(self.words, str) else " ".join(self.words)
        return (words + (f" ({self.sends} at {self.when!r})" if self.sends else ""))[:100]


def furnish(folder: Path) -> None:
    "Put into a folder what a user has there: servers, tasks, episodes of two policies, and some broken files."
    tasks = json.loads((ROOT / "mcp_grpo/assets/tasks/train.json").read_text())
    (folder / "tasks").mkdir()
    for name, rows in ("train", tasks[:40]), ("validation", tasks[40:50]):
        (folder / f"tasks/{name}.json").write_text(json.dumps(rows))
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"fmp": FMP}}))
    (folder / "empty.json").write_text("{}")
    (folder / "none.json").write_text('{"mcpServers": {}}')
    (folder / "list.json").write_text("[]")
    (folder / "half.json").write_text('{"mcpServers": {"fmp": {"comm')
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "half.jsonl").write_text('{"task_id": 1\n{"task_id": 2}\n')
    (folder / "binary.jsonl").write_bytes(b"\xff\xfe\x00\n")
    (folder / "a_file").write_text("")
    (folder / "nothing").mkdir()
    episodes = (ROOT / "tests/data/trajectories.jsonl").read_text()
    (folder / "episodes.jsonl").write_text(episodes)
    (folder / "other.jsonl").write_text(re.sub('"(task_id|pair)":"(?=.)', r'"\1":"other-', episodes))
    (folder / "outputs/mine").mkdir(parents=True)
    (folder / "outputs/mine/metrics.jsonl").write_text('{"step": 1}\n')


def server_file(**entry) -> dict[str, str]:
    "The file servers.json with one entry."
    return {"servers.json": json.dumps({"mcpServers": {"mine": entry}})}


LONG = "x" * 300
EXPLORE = "tasks --servers mcp.json --out new"
SERVERS = "tasks --servers servers.json --minutes 0.1"
TRAIN = "train --steps 40 --run long --set train.tasks_per_step=2,rollout.samples=2,evaluate.tasks=4"
MISTAKES = [
    # no such thing
    Mistake("trian", "No such command 'trian'"),
    Mistake("train --stesp 3", "No such option"),
    Mistake("show", "Missing argument"),
    Mistake("tasks", "Missing option '--servers'"),
    Mistake("compare", "Missing argument"),
    Mistake("call", "Missing argument"),
    Mistake("serve", "Missing argument"),
    Mistake("serve slack --live", "--live --teams T0123"),
    Mistake("push outputs/mine my-model", "no trained model yet"),
    # doctor
    Mistake("doctor --servers nowhere.json", "nowhere.json does not exist"),
    Mistake("doctor --servers half.json", "problem"),
    Mistake("doctor --servers none.json", "problem"),
    Mistake("doctor --mode gpux", "mode 'gpux' does not exist"),
    Mistake("doctor --set train.stepps=3", "did you mean train.steps"),
    Mistake("doctor --set train.lr", "train.lr"),
    Mistake("doctor --model no/such/model", "problem"),
    Mistake("doctor --tasks nowhere", "nowhere"),
    # tasks
    Mistake("tasks --servers nowhere.json", "does not exist"),
    Mistake("tasks --servers nothing", "nothing"),
    Mistake("tasks --servers empty.json", "mcpServers"),
    Mistake("tasks --servers none.json", "holds no server"),
    Mistake("tasks --servers list.json", "mcpServers"),
    Mistake("tasks --servers half.json", "half.json"),
    Mistake("tasks --servers binary.json", "binary.json"),
    Mistake(f"{EXPLORE} --number 0", "number"),
    Mistake(f"{EXPLORE} --number -3", "number"),
    Mistake(f"{EXPLORE} --number many", "number"),
    Mistake(f"{EXPLORE} --minutes 0", "minutes"),
    Mistake(f"{EXPLORE} --minutes nan", "minutes"),
    Mistake(f"{EXPLORE} --minutes -1", "minutes"),
    Mistake(f"{EXPLORE} --held-out 5", "held-out"),
    Mistake(f"{EXPLORE} --held-out nan", "held-out"),
    Mistake(f"{EXPLORE} --only fmpp", "there is no server 'fmpp'"),
    Mistake(f"{EXPLORE} --seeds {{", "--seeds"),
    Mistake(f"{EXPLORE} --seeds nowhere.json", "--seeds"),
    Mistake(f"{EXPLORE} --seeds list.json", "seeds should be an object"),
    Mistake([*EXPLORE.split(), "--seeds", '{"symbl": "QZXA"}'], "did you mean symbol"),
    Mistake(f"{EXPLORE} --allow no_such_tool", "no tool 'no_such_tool'"),
    Mistake(f"{EXPLORE} --catalog nowhere.json", "nowhere.json"),
    Mistake(f"{EXPLORE} --catalog half.json", "half.json"),
    Mistake("tasks --servers mcp.json --out a_file", "not a folder"),
    Mistake("tasks --servers mcp.json --out a_file/inner", "not a folder"),
    Mistake("tasks --servers mcp.json --out /proc/tasks", "cannot be written"),
    Mistake(SERVERS, "no-such-program", server_file(command="no-such-program")),
    Mistake(SERVERS, "did not start|no tasks", server_file(command="false")),
    Mistake(SERVERS, "did not start|no tasks", server_file(command="echo", args=["hello"])),
    Mistake(SERVERS, "did not start|no tasks", server_file(command=sys.executable, args=["nowhere.py"])),
    Mistake(SERVERS, "did not start|no tasks", server_file(command="sleep", args=["1000"], start_timeout=2)),
    Mistake(SERVERS, "did not start|no tasks", server_file(url="http://127.0.0.1:9/mcp")),
    Mistake(SERVERS, "URL is missing", server_file(url="not an address")),
    Mistake(SERVERS, "NOT_SET_ANYWHERE", server_file(url="http://127.0.0.1:9/${NOT_SET_ANYWHERE}")),
    Mistake(SERVERS, "isolation", server_file(**FMP | {"isolation": "sharde"})),
    Mistake(SERVERS, "tiemout", server_file(**FMP, tiemout=3)),
    Mistake(SERVERS, "timeout", server_file(**FMP, timeout=-1)),
    Mistake(SERVERS, "mine", server_file(command="true", url="http://127.0.0.1:9/mcp")),
    Mistake(SERVERS, "mine", server_file()),
    Mistake(SERVERS, "nowhere", server_file(server="nowhere.module:make")),
    Mistake(SERVERS, "no_such", server_file(server="mcp_grpo.servers.fmp:no_such")),
    # check
    Mistake("check --tasks nowhere", "nowhere"),
    Mistake("check --tasks nothing", "nothing"),
    Mistake("check --tasks half.json --heldout half.json", "half.json"),
    Mistake("check --tasks binary.json --heldout binary.json", "binary.json"),
    Mistake("check --tasks list.json --heldout list.json", "list.json"),
    Mistake("check --tasks tasks --heldout nowhere.json", "nowhere.json"),
    Mistake("check --tasks tasks --servers mcp.json", "not configured"),
    Mistake("check --tasks tasks --set servers.names=[polygn]", "polygn"),
    # train and warmstart
    Mistake("train --mode gpux", "mode 'gpux' does not exist"),
    Mistake("train --steps -1", "steps"),
    Mistake("train --steps few", "steps"),
    Mistake("train --seed x", "seed"),
    Mistake("train --model no/such/model", "no/such/model"),
    Mistake("train --model nothing", "nothing"),
    Mistake("train --tasks nowhere", "nowhere"),
    Mistake("train --tasks tasks/train.csv", "train.csv"),
    Mistake("train --servers nowhere.json", "nowhere.json"),
    Mistake("train --run a/b", "cannot name a folder"),
    Mistake(f"train --run {LONG}", "run"),
    Mistake("train --run mine", "already holds a run"),
    Mistake("train --resume --run mien", "did you mean mine"),
    Mistake("train --resume", "run"),
    Mistake("train --warmstart -1", "warmstart"),
    Mistake("train --set train.lr=fast", "train.lr"),
    Mistake("train --set train.lr=nan", "train.lr"),
    Mistake("train --set rollout.max_tokens=64", "rollout.max_tokens|tokens"),
    Mistake("train --set reward.module=nowhere.py", "nowhere.py"),
    Mistake("train --set data.world_seed=1", "world_seed"),
    Mistake("warmstart --steps 0", "steps"),
    Mistake("warmstart --lr inf", "finite"),
    Mistake("warmstart --lr -1", "lr"),
    Mistake("warmstart --model nothing", "nothing"),
    Mistake("warmstart --run mine", "already holds a run"),
    # report, evaluate
    Mistake("report nowhere", "nowhere"),
    Mistake("report a_file", "a_file"),
    Mistake("report nothing", "nothing"),
    Mistake("evaluate no/such/policy", "no/such/policy"),
    Mistake("evaluate nothing", "nothing"),
    Mistake("evaluate outputs/mine", "outputs/mine"),
    Mistake("evaluate oracle --tasks nowhere.json", "nowhere.json"),
    Mistake("evaluate oracle --tasks nothing", "nothing"),
    Mistake("evaluate oracle --tasks half.json", "half.json"),
    Mistake("evaluate oracle --rounds 0", "rounds"),
    Mistake("evaluate oracle --rounds -1", "rounds"),
    Mistake("evaluate oracle --temperature -1", "temperature"),
    Mistake("evaluate oracle --temperature nan", "temperature"),
    Mistake("evaluate oracle --number -3", "number"),
    Mistake("evaluate oracle --mode gpux", "gpux"),
    Mistake("evaluate oracle --tasks bfcl:bsae", "bsae|bfcl"),
    Mistake("evaluate oracle --set evaluate.tasks=-1", "evaluate.tasks"),
    Mistake("evaluate oracle --tasks tasks --servers mcp.json", "not configured"),
    Mistake("evaluate m --tasks tasks --number 1 --endpoint nonsense", "nonsense"),
    Mistake("evaluate m --tasks tasks --number 1 --endpoint http://127.0.0.1:9/v1", "127.0.0.1:9"),
    # show, compare, call, serve
    Mistake("show nowhere", "nowhere"),
    Mistake("show nothing", "nothing"),
    Mistake("show half.jsonl", "line 1"),
    Mistake("show binary.jsonl", "line 1"),
    Mistake("show tasks/train.json", "train.json"),
    Mistake("show episodes.jsonl --number -1", "number"),
    Mistake("show episodes.jsonl --family none", "no such episode"),
    Mistake("show outputs/mine --which sideways", "sideways|outputs/mine"),
    Mistake("compare outputs/mine", "outputs/mine"),
    Mistake("compare nowhere episodes.jsonl", "nowhere"),
    Mistake("compare episodes.jsonl other.jsonl", "no task in common"),
    Mistake("compare episodes.jsonl episodes.jsonl --number -1", "number"),
    Mistake("call polygone", "did you mean polygon"),
    Mistake("call polygon get_agg", "did you mean get_aggs"),
    Mistake("call polygon get_aggs {ticker}", "not JSON"),
    Mistake("call polygon get_last_trade [1]", "object"),
    Mistake("call polygon get_last_trade {}", "ticker"),
    Mistake("call polygon --servers nowhere.json", "nowhere.json"),
    Mistake("serve polygone", "polygone"),
    Mistake("serve polygon --tools get_agg", "get_agg"),
    Mistake("serve polygon --http --host 0.0.0.0", "host"),
    Mistake("serve polygon --http --port 99999", "port"),
    # a results folder that cannot be
    Mistake("evaluate oracle --number 2", "cannot be written", {"outputs": ""}),
    Mistake("train", "cannot be written", {"outputs": ""}),
    Mistake("warmstart", "cannot be written", {"outputs": ""}),
    # interruptions
    *(
        Mistake("evaluate oracle --rounds 40", "interrupted", sends="SIGINT", when=seconds)
        for seconds in (0.3, 0.6, 1.0, 1.5, 2.5)
    ),
    Mistake("evaluate oracle --rounds 400", "interrupted", sends="SIGINT", when="of [0-9]+, "),
    Mistake(f"{EXPLORE} --minutes 3", "interrupted", sends="SIGINT", when="exploring"),
    Mistake(f"{EXPLORE} --minutes 3", "", sends="SIGTERM", when="exploring"),
    Mistake(
        "tasks --servers servers.json",
        "interrupted",
        server_file(command=sys.executable, args=[str(ROOT / "tests/servers/sleepy.py")], isolation="process"),
        sends="SIGINT",
        when="exploring",
    ),
    Mistake(TRAIN, "interrupted", sends="SIGINT", when="step +1"),
    Mistake(TRAIN, "interrupted", sends="SIGTERM", when="step +1"),
    Mistake(TRAIN, "interrupted", sends="SIGHUP", when="step +1"),
    Mistake(f"{TRAIN} --warmstart 40", "interrupted", sends="SIGINT", when="warm|supervised"),
]


def wrong(mistake: Mistake, folder: Path) -> str:
    "Make a mistake in a folder that is furnished for it; returns what is wrong with the answer, or an empty text."
    folder.mkdir()
    furnish(folder)
    for name, text in mistake.files.items():
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).write_text(text)
    words = mistake.words.split() if isinstance(mistake.words, str) else mistake.words
    given = {"words": words, "sends": mistake.sends, "when": mistake.when}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "WANDB_"))}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(given)],
        cwd=folder,
        env=inherited | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return f"the adopting process failed: {done.stderr[-500:]}"
    return verdict(mistake, **found)


def verdict(mistake: Mistake, code: int | None, out: str, err: str, left: list[str]) -> str:
    "Return what is wrong with how a command ended."
    told = [line for line in err.splitlines() if line.strip() and not line.startswith(("Usage:", "Try '"))]
    if mistake.words[:4] in ("doct", "call") and not told:
        told = out.splitlines()[-1:]  # the doctor counts its findings there, and a tool refuses a call there
    if code is None:
        return f"it did not end within {MOST_SECONDS} s"
    if code == 0 or left:
        return f"exit status {code}, processes left: {left}"
    if "Traceback" in out + err:
        return f"a traceback: {told[-1][:300] if told else ''}"
    if mistake.sends:
        told = told[-1:]  # what was done before stands above
    sentence = told[-1] if told else ""
    if len(told) != 1 or len(sentence) > 1500:
        return f"{len(told)} lines instead of a sentence: {told[:3]}" if mistake.says or told else ""
    return "" if re.search(mistake.says, out + sentence if mistake.sends else sentence) else f"it says: {sentence}"


def adopt(words: list[str], sends: str, when: str | float) -> dict:
    "Run the command, send the signal, and return how it ended and which processes it left; these are killed."
    import ctypes

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans become children of this process
    for name in ("SIGINT", "SIGHUP"):  # a shell ignores them for what it starts in the background
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    with open("out.txt", "wb") as out, open("err.txt", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mcp_grpo.cli", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    began, sent = time.monotonic(), not sends
    while process.poll() is None and time.monotonic() - began < MOST_SECONDS:
        time.sleep(0.02)
        said = Path("out.txt").read_text(errors="replace") + Path("err.txt").read_text(errors="replace")
        due = re.search(when, said) if isinstance(when, str) else time.monotonic() - began > when
        if not sent and due:
            process.send_signal(getattr(signal, sends))
            sent = True
    code = process.poll()
    until = time.monotonic() + 10
    while (left := children()) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    read = {name: Path(f"{name}.txt").read_text(errors="replace") for name in ("out", "err")}
    if sends and not sent:
        read["err"] += "\nthe signal was never sent"
    return {"code": code, **read, "left": list(left.values())}


def children() -> dict[str, str]:
    "The command lines of this process's living children, by number; what has ended is reaped."
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            return {}
    found = {}
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200]
    return found


if __name__ == "__main__":
    print(json.dumps(adopt(**json.loads(sys.argv[1]))))
