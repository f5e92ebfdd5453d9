"""The modes of `wild.py` as a table: every call ends in its time, the event loop goes on, memory stays, and no other
episode notices. The tests try some modes, the benchmark all."""

import asyncio, contextlib, subprocess, sys, time
from dataclasses import dataclass
from pathlib import Path

import anyio
from fault_table import Lag, PeakMemory, faulty
from wild import ANY, FAULT, HTTP, LISTS, OK, PAYLOADS, STDIO

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.session import SessionError
from mcp_grpo.client.spec import ServerSpec

HERE = Path(__file__).parent
TIMEOUT = 2.0  # seconds of a call, in the benchmark; on a busy machine a call of the neighbours may take as long
GRACE, KEPT, MEMORY = 0.5, 0.1, 50.0  # what a call may take longer, seconds that the loop may be kept, MB


@dataclass(frozen=True)
class Mode:
    "One row of the table."

    transport: str  # stdio or http
    name: str  # of a mode, or the kind of a tool list
    ends: str  # ok, fault or any; of a list: whether a session can be opened
    lists: bool = False

    @property
    def what(self) -> str:
        return f"{self.transport}: {'tools: ' if self.lists else ''}{self.name}"


def all_modes() -> list[Mode]:
    "Every mode of every transport; over HTTP the common answers come as a body and as an event."
    both = [
        Mode(transport, prefix + name, ends)
        for transport, prefix in (("stdio", ""), ("http", ""), ("http", "event: "))
        for name, (ends, _) in PAYLOADS.items()
    ]
    lists = [
        Mode(transport, kind, OK if opens else FAULT, lists=True)
        for transport in ("stdio", "http")
        for kind, (opens, _) in LISTS.items()
    ]
    either = (
        "event: an answer to another request",
        "event: a long text with one wide character",
    )  # whose stream it is on is known; its text takes much memory
    both = [Mode(mode.transport, mode.name, ANY) if mode.name in either else mode for mode in both]
    return [
        *both,
        *(Mode("stdio", name, ends) for name, ends in STDIO.items()),
        *(Mode("http", name, ends) for name, ends in HTTP.items()),
        *lists,
    ]


@contextlib.contextmanager
def wild_spec(mode: Mode, timeout: float):
    "The spec of a server for a mode; over HTTP the server runs meanwhile."
    words, limits = ["--list", mode.name] if mode.lists else [], dict(timeout=timeout, start_timeout=60.0, retries=0)
    if mode.transport == "stdio":
        yield ServerSpec("wild", command=sys.executable, args=[str(HERE / "wild.py"), *words], **limits)
        return
    server = subprocess.Popen(
        [sys.executable, str(HERE / "wild.py"), "--http", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield ServerSpec("wild", url=server.stdout.readline().strip(), **limits)
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


async def carry_on(lease, stop: anyio.Event, wrong: list) -> None:
    "An episode at another server, which goes on all the time."
    while not stop.is_set():
        result = await lease.call("faulty", "slow", {"seconds": 0.02})
        if result.fault or result.is_error:
            wrong.append(f"another server's episode ended with {result.fault or result.content[:80]}")


def long_text(mode: Mode) -> dict:
    "An argument that is longer than a pipe, where the mode is about that."
    return {"text": "y" * 200_000} if mode.name == "hang with a full pipe" else {}


async def one_call(lease, mode: Mode, wrong: list) -> float:
    "Make the call; what was wrong goes to the list. Returns its seconds."
    began = time.perf_counter()
    try:
        result = await lease.call("wild", "wild", {"mode": mode.name} | long_text(mode))
    except SessionError as e:
        result = e
    took = time.perf_counter() - began
    ended = FAULT if result.fault else OK
    if mode.ends != ANY and ended != mode.ends:
        wrong.append(f"it ended with {result.fault or result.content[:80]}")
    if ended == OK and result.is_error and mode.ends != ANY:
        wrong.append(f"the model is blamed: {result.content[:80]}")
    if ended == OK and any(word in str(result.structured) for word in (" nan", "[nan", " inf", "[inf")):
        wrong.append("a number that is not JSON came through")
    return took


async def play(mode: Mode, spec: ServerSpec) -> dict:
    "One mode, among other episodes."
    wrong, stop, took, lag = [], anyio.Event(), 0.0, Lag()
    async with Pool({"wild": spec, "faulty": faulty(timeout=spec.timeout)}) as pool:
        async with await pool.lease(["faulty"]) as other:
            await other.call("faulty", "ok", {"text": "warm"})
            if not mode.lists:
                async with await pool.lease(["wild"]) as first:
                    await first.call("wild", "wild", {"mode": "fine"})
            with PeakMemory() as memory:
                async with lag, anyio.create_task_group() as group:
                    group.start_soon(carry_on, other, stop, wrong)
                    if mode.lists:
                        try:
                            async with await pool.lease(["wild"]) as bad:
                                opened = OK if bad.tools("wild") is not None else FAULT
                        except SessionError:
                            opened = FAULT
                        if opened != mode.ends:
                            wrong.append(f"a session {'opened' if opened == OK else 'did not open'}")
                    else:
                        async with await pool.lease(["wild"]) as bad, await pool.lease(["wild"]) as neighbour:
                            await neighbour.call("wild", "wild", {"mode": "fine"})
                            took = await one_call(bad, mode, wrong)
                            again = time.perf_counter()
                            await bad.call(
                                "wild", "wild", {"mode": "fine"} | long_text(mode)
                            )  # in whatever state the session is
                            took = max(took, time.perf_counter() - again)
                            again = time.perf_counter()
                            kept = await neighbour.call("wild", "wild", {"mode": "fine"})
                            took = max(took, time.perf_counter() - again)
                            if kept.content != "fine":
                                wrong.append(f"its neighbour got {kept.fault}: {kept.content[:80]}")
                    await asyncio.sleep(0.05)
                    stop.set()
    return {
        "what": mode.what,
        "wrong": "; ".join(dict.fromkeys(wrong)),
        "timeout": spec.timeout,
        "over": took - spec.timeout,
        "starved": lag.starved,
        "lag": lag.wall,
        "kept": lag.kept,
        "mb": memory.mb,
    }


def mode_row(mode: Mode, timeout: float = TIMEOUT) -> dict:
    "One row: what was wrong, seconds over the timeout, seconds that the loop was kept, MB."
    with wild_spec(mode, timeout) as spec:
        return anyio.run(play, mode, spec)


def complaints(row: dict, patience: float = 1.0) -> str:
    """What does not hold in a row, with seconds allowed `patience` times over; the time in which a busy machine did not
    let this process run is no matter of the row."""
    late = row["over"] - min(row["starved"], row["timeout"])
    found = [row["wrong"]] if row["wrong"] else []
    if late > GRACE * patience:
        found.append(f"{row['over']:.2f} s over its timeout")
    if row["kept"] > KEPT * patience:
        found.append(f"the loop was kept {row['kept']:.2f} s")
    if (row["mb"] or 0) > MEMORY:
        found.append(f"{row['mb']:.0f} MB more")
    return "; ".join(found)


if __name__ == "__main__":
    for mode in all_modes():
        if not sys.argv[1:] or any(word in mode.what for word in sys.argv[1:]):
            row = mode_row(mode)
            print(
                (
                    f"{mode.what:60} over {row['over']:6.2f}  kept {row['kept']:.3f}  lag {row['lag']:.3f}  "
                    f"{row['mb'] or 0:5.0f} MB  {complaints(row)}"
                ),
                flush=True,
            )
