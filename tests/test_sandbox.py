"What model-written code can do in the sandbox, of either kind, and without it; and that nothing of it stays behind."

import asyncio, gc, json, os, shutil, signal, subprocess, sys, tempfile, time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from conftest import ROOT
from filelock import FileLock

sys.path.insert(0, str(ROOT / "tests/servers"))
from hostile import jail, snippets

from mcp_grpo.sandbox.box import Interpreter, Sandbox, Zygote
from mcp_grpo.sandbox.walls import Limits, SandboxError

PROGRAM = [sys.executable, str(ROOT / "tests/servers/hostile.py")]
bubblewrap = pytest.mark.skipif(
    not shutil.which("bwrap"), reason="bubblewrap is not installed (apt-get install bubblewrap)"
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="model-written code is confined on Linux only")
pytestmark = linux


@pytest.fixture
def folder():
    "Outside of /tmp, which an episode has for itself."
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        yield path


def hostile(kind: str, folder: str, before: list = ()) -> dict:
    "What came through of the hostile snippets."
    done = subprocess.run(
        [*before, *PROGRAM, kind, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def channels(where: str, episodes: int, before: list = ()) -> dict:
    """How many episodes saw the mark of another one. Some marks are left on the whole machine, so that only one trial
    on it runs at a time."""
    with FileLock(Path(tempfile.gettempdir()) / "mcp-grpo-sandbox-channels.lock"):
        done = subprocess.run(
            [*before, sys.executable, str(ROOT / "tests/sandbox_channels.py"), where, str(episodes)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=3600,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", [pytest.param("bubblewrap", marks=bubblewrap), "landlock"])
def test_nothing_comes_through(kind, folder):
    found = hostile(kind, folder)
    assert found["kind"] == kind and found["tried"] >= 40 and not found["breaches"]


@bubblewrap
def test_where_namespaces_are_denied_landlock_takes_over(folder):
    found = hostile("any", folder, jail(folder))
    assert (found["kind"], found["folder"], found["breaches"]) == ("landlock", False, {})


@bubblewrap
def test_the_list_is_hostile_indeed(folder):
    found = hostile("none", folder, jail(folder))
    assert found["kind"] == "none" and len(found["breaches"]) >= 12 and len(snippets()) == found["tried"]


def descendants(process: psutil.Process) -> list:
    return [p for p in process.children(recursive=True) if p.is_running()]


def kill_zygote(box: Sandbox) -> None:
    "Kill a sandbox's zygote and all below it; some of them may end by themselves, because the one above them has."
    for process in (*descendants(psutil.Process(box.zygote.process.pid)), box.zygote.process):
        with suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.parametrize("kind", [pytest.param("bubblewrap", marks=bubblewrap), "landlock"])
def test_nothing_outlives_a_killed_owner(kind):
    program = f"""
import asyncio
from mcp_grpo.sandbox.box import Interpreter, Sandbox
from mcp_grpo.sandbox.walls import Limits
async def main():
    async with Sandbox(only={kind!r}, limits=Limits(seconds=300)) as box, Interpreter(box) as idle, Interpreter(box) as busy:
        await idle.run("x = 1")
        task = asyncio.create_task(busy.run("while True: pass"))
        await asyncio.sleep(0.5)
        print("up", flush=True)
        await task
asyncio.run(main())
"""  # noqa: E501
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd="/",
    )
    assert owner.stdout.readline() == "up\n"
    left = descendants(psutil.Process(owner.pid))
    assert len(left) >= 3
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    gone, alive = psutil.wait_procs(left, timeout=30)
    assert not alive


def test_a_dead_zygote_is_replaced():
    async def main():
        async with Sandbox() as box:
            async with Interpreter(box) as e:
                await e.run("x = 1")
                kill_zygote(box)
                with pytest.raises(SandboxError, match="zygote has ended"):
                    await e.run("x")  # the code is not to blame
                return await e.run("1 + 1")

    assert asyncio.run(main()).value == "2"


def test_those_who_come_while_it_is_replaced_wait():
    async def main():
        async with Sandbox() as box:

            async def one(n):
                await asyncio.sleep(n / 20)
                async with Interpreter(box) as e:
                    return (await e.run(f"{n} + 1")).value

            kill_zygote(box)
            return await asyncio.gather(*map(one, range(20)))

    assert asyncio.run(main()) == [str(n + 1) for n in range(20)]


def test_no_zygote_that_fails_its_test_is_used(monkeypatch):
    async def main():
        async with Sandbox() as box:
            kill_zygote(box)

            async def deaf(zygote):
                raise SandboxError("no answer")

            monkeypatch.setattr(Zygote, "fork", deaf)  # what a self-test meets when processes cannot be started
            tries = [asyncio.create_task(Interpreter(box).run("1")) for _ in range(3)]
            await asyncio.wait(tries, timeout=300)
            return [t.done() and type(t.exception()) for t in tries], box.zygote

    assert asyncio.run(main()) == ([SandboxError] * 3, None)


def zygote_of(box: Sandbox) -> psutil.Process:
    "The zygote itself, past bubblewrap."
    process = psutil.Process(box.zygote.process.pid)
    while process.name() == "bwrap":
        process = process.children()[0]
    return process


async def left_by(zygote: psutil.Process) -> tuple:
    "Open files of this process and memory of the zygote, once all children have ended."
    deadline = time.monotonic() + 120
    while (left := descendants(zygote)) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not left
    gc.collect()
    return psutil.Process().num_fds(), zygote.memory_info().rss


def test_many_executions_leave_nothing():
    async def main():
        async with Sandbox(limits=Limits(seconds=60)) as box:

            async def one(n):
                async with Interpreter(box) as e:
                    return await e.run(f"open('f', 'w').write('x' * 1000)\n{n} + 1")

            async def many(first):
                return await asyncio.gather(*(one(first + i) for i in range(8)))

            await many(0)
            zygote = zygote_of(box)
            before = await left_by(zygote)
            for n in range(20):
                assert [r.value for r in await many(n)] == [str(n + i + 1) for i in range(8)]
            return before, await left_by(zygote)

    before, after = asyncio.run(main())
    assert after[0] <= before[0] and after[1] < before[1] + (1 << 20)


def test_a_closed_interpreter_starts_no_process():
    async def main():
        async with Sandbox() as box:
            waiting, used = Interpreter(box), Interpreter(box)
            starting = asyncio.create_task(waiting.run("1"))
            await used.run("1")
            await asyncio.sleep(0)
            waiting.close()  # while, or after, its process starts
            used.close()
            refused = await asyncio.gather(
                used.run("1"), waiting.run("1"), used.__aenter__(), starting, return_exceptions=True
            )
            await left_by(zygote_of(box))
            return refused[:3]

    for error in asyncio.run(main()):
        assert isinstance(error, SandboxError) and "closed" in str(error)


@pytest.mark.parametrize(
    "where", [pytest.param("bubblewrap", marks=bubblewrap), "landlock", pytest.param("denied", marks=bubblewrap)]
)
def test_no_episode_sees_the_mark_of_another(where, folder):
    found = channels(where, 4, jail(folder) if where == "denied" else ())
    assert found["kind"] == ("bubblewrap" if where == "bubblewrap" else "landlock") and found["channels"] >= 40
    assert not found["one_after_another"]["seen"] and not found["at_once"]["seen"]
    if where == "denied":
        assert (
            found["one_after_another"]["said_open"]["process numbers"] == 4
        )  # what is said to stay open does, so the trial sees marks


@bubblewrap
def test_the_marks_can_be_seen(folder):
    found = channels("none", 4, jail(folder))
    assert len({*found["one_after_another"]["seen"], *found["at_once"]["seen"]}) >= 15


def test_other_systems_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="needs Linux"):
        Sandbox().start()
