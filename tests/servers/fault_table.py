"""The fault table: what a server does, how its episode must end, and trials that see to it. The tests make a few, the
benchmark a hundred."""

import asyncio, contextlib, gc, json, os, signal, subprocess, sys, tempfile, time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import psutil
from faulty import VICTIM

from mcp_grpo.client.hardening.tools import PinError
from mcp_grpo.client.pool import Pool, together
from mcp_grpo.client.session import SessionError
from mcp_grpo.client.spec import ServerSpec

HERE = Path(__file__).parent


def faulty(*args: str, **more) -> ServerSpec:
    "The server that misbehaves on demand."
    return ServerSpec(
        **{
            "name": "faulty",
            "command": sys.executable,
            "args": [str(HERE / "faulty.py"), *args],
            "timeout": 20.0,
            "start_timeout": 60.0,
        }
        | more
    )


@dataclass(frozen=True)
class Case:
    "One row of the table."

    what: str
    tool: str
    arguments: dict = field(default_factory=dict)
    fault: str | None = None  # how the call must end
    says: str = ""  # or: with this text
    timeout: float = 20.0
    at_once: int = 4  # trials; 1 where time and memory are measured


CASES = [
    Case("crash mid-call", "crash", fault="crash"),
    Case("hang", "hang", fault="timeout", timeout=4.0),
    Case("malformed JSON", "malformed", fault="transport"),
    Case("wrong id", "wrong_id", fault="transport"),
    Case("non-UTF-8", "non_utf8", says="caf\ufffd"),
    Case("lines that are no messages", "noise", says="done"),
    Case("50 MB result", "huge", {"mb": 50}, fault="too_large", at_once=1),
    Case("hostile regex, input schema", "evil_input", {"text": VICTIM}, says=VICTIM, at_once=1),
    Case("hostile regex, output schema", "evil_output", says=VICTIM, at_once=1),
    Case("a child that holds the pipes", "spawn_child", {"detached": False}),
    Case("a child in a session of its own", "spawn_child", {"detached": True}),
]
QUIET = Case("no fault", "ok", {"text": "fine"}, says="fine")


# ---- measuring


class Lag:
    """The longest time the event loop did not come round: in all, of that what this thread itself computed, and what
    this process did (the rest is a busy machine); and what such rests add up to."""

    def __init__(self):
        self.wall = self.computing = self.kept = self.starved = 0.0

    async def _watch(self):
        wall, cpu, process = time.perf_counter(), time.thread_time(), time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter(), time.thread_time(), time.process_time()
            gone = now[0] - wall - 0.005
            self.wall, self.computing, self.kept = (
                max(self.wall, gone),
                max(self.computing, now[1] - cpu),
                max(self.kept, min(gone, now[2] - process)),
            )
            self.starved += max(0.0, gone - (now[2] - process))
            wall, cpu, process = now

    async def __aenter__(self):
        gc.collect()
        gc.freeze()  # a collection among the objects of all other tests would count as computing
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *exc):
        self._task.cancel()
        gc.unfreeze()


class PeakMemory:
    "Megabytes that this process grew by, at the worst moment of a block; None where the system does not say."

    mb = None

    def __enter__(self):
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.before = psutil.Process().memory_info().rss
        return self

    def __exit__(self, *exc):
        with contextlib.suppress(OSError, StopIteration):
            line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
            self.mb = (int(line.split()[1]) * 1024 - self.before) / 1e6


def alive(process: psutil.Process | int) -> bool:
    "Whether a process still runs; its number alone may be another's by now."
    try:
        if isinstance(process, int):
            process = psutil.Process(process)
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def server_processes(but: set[int] = frozenset()) -> list[psutil.Process]:
    """What this process started and what those started, but for the fork servers and the processes `but`, such as the
    sandbox of another test."""
    me, found = psutil.Process(), []
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            is_fork_server = child.ppid() == me.pid and any(word.endswith("fork_server.py") for word in child.cmdline())
            if not is_fork_server and child.pid not in but and child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
    return found


def here_already() -> set[int]:
    "The processes that `server_processes` finds now."
    return {process.pid for process in server_processes()}


async def until(condition, seconds: float = 60.0) -> bool:
    "Whether `condition()` came true in time."
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.05)
    return condition()


# ---- trials


async def trial(pool: Pool, case: Case) -> tuple[str, float]:
    "What was wrong, or nothing, and how long the call took."
    async with await pool.lease(["faulty"]) as bad, await pool.lease(["faulty"]) as good:
        await bad.call("faulty", "ok", {"text": "first"})
        await good.call("faulty", "remember", {"text": "mine"})

        async def misbehave():
            return await bad.call("faulty", case.tool, case.arguments)

        async def carry_on():
            return await good.call("faulty", "slow", {"seconds": 0.1})

        result, other = await together(lambda go: go(), [misbehave, carry_on])
        kept = await good.call("faulty", "recall")
        after = await bad.call("faulty", "ok", {"text": "after"})
    wrong = []
    if result.fault != case.fault or result.is_error:
        wrong.append(f"it ended with {result.fault or result.content[:80]}")
    if case.says not in result.content:
        wrong.append(f"it said {result.content[:80]!r}")
    if (other.content, kept.content) != ("done", "mine"):
        wrong.append(f"its neighbour got {other.content!r} and {kept.content!r}")
    if bool(after.fault) != bool(case.fault):
        wrong.append(f"the next call ended with {after.fault or after.content[:80]}")
    if case.tool == "spawn_child" and not await until(lambda: not alive(int(result.content))):
        wrong.append("the child lives on")
    return "; ".join(wrong), result.seconds


async def table_row(case: Case, trials: int, *words: str) -> dict:
    """Many trials at a server that is started with these words: how many ended as they should, the complaints, and the
    worst seconds, lag and memory."""
    outcomes, others = [], here_already()
    async with Pool({"faulty": faulty(*words, timeout=case.timeout)}) as pool:
        await pool.warm({"faulty": 2 * case.at_once})
        await trial(pool, QUIET)  # what is imported or compiled once is no matter of the fault
        with PeakMemory() as memory:
            async with Lag() as lag:
                while len(outcomes) < trials:
                    outcomes += await together(
                        lambda _: trial(pool, case), range(min(case.at_once, trials - len(outcomes)))
                    )
    clean = await until(lambda: not server_processes(others))
    complaints = [wrong for wrong, _ in outcomes if wrong] + (
        [] if clean else [f"left: {[p.cmdline() for p in server_processes(others)]}"]
    )
    return {
        "what": case.what,
        "trials": trials,
        "held": sum(not wrong for wrong, _ in outcomes),
        "left": 0 if clean else len(server_processes(others)),
        "complaints": complaints,
        "seconds": max(seconds for _, seconds in outcomes),
        "lag": lag.wall,
        "computing": lag.computing,
        "mb": memory.mb,
    }


async def refusal(pool: Pool) -> str:
    "Why a lease or its first call did not work; empty if both did."
    try:
        async with await pool.lease(["faulty"]) as lease:
            result = await lease.call("faulty", "ok", {"text": "x"})
    except (SessionError, PinError) as e:
        return str(e)
    return result.content if result.fault else ""


async def changed_tools(trials: int, approved: str, *words: str) -> dict:
    """A tool list that changes: between runs, where it was pinned, and under a running pool, where episodes that began
    before go on."""
    held, complaints, others = 0, [], here_already()
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "version"
        for _ in range(trials):
            version.write_text("1")
            async with (
                Pool({"faulty": faulty("--tools", str(version), *words, pin=approved)}) as pool,
                await pool.lease(["faulty"]) as old,
            ):
                await old.call("faulty", "remember", {"text": "mine"})
                version.write_text("2")
                under_way = await refusal(pool)
                kept = (await old.call("faulty", "recall")).content
            async with Pool({"faulty": faulty("--tools", str(version), *words, pin=approved)}) as pool:
                next_run = await refusal(pool)
            async with Pool({"faulty": faulty("--tools", str(version), *words)}) as pool:
                unpinned = await refusal(pool)
            right = (bool(under_way), kept, "pin" in next_run, unpinned) == (True, "mine", True, "")
            held += right
            if not right:
                complaints.append(
                    f"under way: {under_way!r}; kept: {kept!r}; pinned: {next_run!r}; not pinned: {unpinned!r}"
                )
    clean = await until(lambda: not server_processes(others))
    return {
        "what": "changed tool list",
        "trials": trials,
        "held": held,
        "left": 0 if clean else len(server_processes(others)),
        "complaints": complaints,
    }


def killed_parent(seconds: float = 60.0) -> str:
    "Kill -9 a program that leases all kinds of servers; what was wrong, or nothing."
    parent = subprocess.Popen([sys.executable, str(HERE / "doomed.py")], stdout=subprocess.PIPE, text=True)
    processes = []
    try:
        for pid in json.loads(parent.stdout.readline()):
            with contextlib.suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(pid))
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    deadline = time.monotonic() + seconds
    while (remaining := list(filter(alive, processes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in remaining:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return (
        f"{len(remaining)} of {len(processes)} processes outlived it"
        if remaining
        else ""
        if len(processes) >= 6
        else f"only {len(processes)} processes were there to outlive it"
    )
