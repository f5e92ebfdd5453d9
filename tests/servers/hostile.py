"""Hostile code against a sandbox: `python hostile.py KIND FOLDER` tries tests/data/hostile.txt and prints what came
through, as JSON.

KIND is one of sandbox.walls.KINDS, or `any` for the strongest that can be had. FOLDER is for the bait and must be
writable. `none` is for jails only (`jail` makes one): nothing holds the code then."""

import asyncio, json, os, re, shutil, socket, sys
from pathlib import Path

from mcp_grpo.sandbox.box import Interpreter, Sandbox
from mcp_grpo.sandbox.walls import Limits, SandboxError

ROOT = Path(__file__).resolve().parents[2]
SECRET = "canary-5b1f"
# an episode beside theirs
WITNESS = (
    "x = 12345\nimport fcntl, os\nheld = open(os.__file__)\nfcntl.lockf(held, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 77)"
)


def snippets() -> dict:
    "name -> code"
    found = re.split(r"^### (.+)\n", (ROOT / "tests/data/hostile.txt").read_text(), flags=re.M)[1:]
    return dict(zip(found[::2], found[1::2]))


def jail(folder: str) -> list:
    "The beginning of a command that runs where nothing can be harmed and no namespaces can be made."
    ours = [
        part for path in dict.fromkeys((str(ROOT), sys.prefix, sys.base_prefix)) for part in ("--ro-bind", path, path)
    ]  # one may lie below /tmp
    return [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--ro-bind",
        "/",
        "/",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        "--tmpfs",
        "/tmp",
        "--tmpfs",
        "/var/tmp",
        *ours,
        "--bind",
        folder,
        folder,
        "--setenv",
        "CANARY_TOKEN",
        SECRET,
    ]


def bait(folder: Path) -> dict:
    "A secret in a folder, laid out anew, and what else stands for the world."
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "canary").write_text(SECRET)
    return dict(
        canary=folder / "canary", folder=folder, pid=os.getpid(), tasks=ROOT / "mcp_grpo/assets/tasks/train.json"
    )


def listen() -> dict:
    "Sockets that hostile code would reach if it could."
    tcp, local, datagram = (
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    )
    name = f"mcp_grpo-{os.getpid()}"
    local.bind(f"\0{name}")
    local.listen()
    datagram.bind(f"\0{name}d")
    return dict(port=tcp.getsockname()[1], abstract=name), (tcp, local, datagram)


async def attempt(box: Sandbox, witness, code: str, folder: Path, where: dict) -> str:
    "Run a snippet; what came through, or nothing."
    for name, value in (bait(folder) | where).items():
        code = code.replace("{%s}" % name, str(value))
    try:
        async with Interpreter(box) as episode:
            r = await episode.run(code)
        alive = await witness.run("x")
    except SandboxError as e:
        return f"the sandbox is gone: {e}"
    said, limits = r.stdout + r.value + r.error, box.limits
    if "BREACH" in r.stdout or SECRET in said:
        return "it says so"
    if os.listdir(folder) != ["canary"] or (folder / "canary").read_text() != SECRET:
        return "files have changed"
    if alive.value != "12345":
        return f"another episode has suffered: {alive}"
    if max(map(len, (r.stdout, r.value, r.error))) > limits.output or r.seconds > limits.seconds + 11:
        return "a limit was passed"
    return ""


async def main(kind: str, folder: str):
    "Try them all."
    os.environ["CANARY_TOKEN"] = SECRET
    where, kept = listen()
    kinds = dict(unsafe_no_sandbox=True) if kind == "none" else {} if kind == "any" else dict(only=kind)
    async with Sandbox(limits=Limits(seconds=2), **kinds) as box:
        async with Interpreter(box) as witness:
            await witness.run(WITNESS)
            came = {
                name: await attempt(box, witness, code, Path(folder) / "bait", where)
                for name, code in snippets().items()
            }
            mine = await witness.run("f = open('mine', 'w').write('kept') and open('mine').read()\nf")
    print(
        json.dumps(
            dict(
                kind=box.kind,
                tried=len(came),
                folder=mine.value == "'kept'",
                breaches={name: how for name, how in came.items() if how},
            )
        )
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
