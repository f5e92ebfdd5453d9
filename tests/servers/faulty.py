"""An MCP server that misbehaves on demand.

It speaks plain JSON-RPC over stdio and needs only the standard library: it starts in a blink, and it can break what an
SDK would not let it. `--tools N` is the version of its tool list, or a file that holds it; `--workdir FOLDER` is where
it keeps its notes (else where it runs). With `--new` it speaks only the revision 2026-07-28, which has no handshake.
"""

import argparse, json, os, signal, subprocess, sys, threading, time
from pathlib import Path

EVIL = "^(a+)+$"  # hours of backtracking on VICTIM
VICTIM = "a" * 40 + "!"
TEXT, NUMBER, FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
TOOLS, REMEMBERED, WIRE = {}, [], threading.Lock()
GIVEN = argparse.Namespace(tools=1, workdir=Path(), new=False)
NEWEST = "2026-07-28"


def tool(output=None, **properties):
    "Offer a function; it gets the id of the request, and answers for itself where it returns None."

    def offer(fn):
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        TOOLS[fn.__name__] = (
            fn,
            {"name": fn.__name__, "description": fn.__doc__, "inputSchema": schema}
            | ({"outputSchema": output} if output else {}),
        )
        return fn

    return offer


def write(line: bytes):
    with WIRE:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def say(**message):
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(id, text, **more):
    say(id=id, result=complete({"content": [{"type": "text", "text": text}], **more}))


def complete(result, lasting=False):
    "A result as the era wants it; `lasting`: one that a client may keep."
    if not GIVEN.new:
        return result
    return result | {"resultType": "complete"} | ({"ttlMs": 0, "cacheScope": "private"} if lasting else {})


@tool(text=TEXT)
def ok(id, text):
    "The text, as it came."
    return text


@tool(text=TEXT)
def remember(id, text):
    "Keep a text in memory."
    REMEMBERED.append(text)
    return "kept"


@tool()
def recall(id):
    "The texts kept in memory."
    return ",".join(REMEMBERED)


@tool(text=TEXT)
def note(id, text):
    "Keep a text in a file."
    with open(GIVEN.workdir / "notes.txt", "a") as f:
        f.write(text + "\n")
    return "kept"


@tool()
def notes(id):
    "The texts kept in the file, and all files there are."
    kept = GIVEN.workdir / "notes.txt"
    return json.dumps(
        {
            "notes": kept.read_text().split() if kept.exists() else [],
            "files": sorted(p.name for p in GIVEN.workdir.iterdir()),
        }
    )


@tool(levels=NUMBER)
def dig(id, levels):
    "Folders within folders, deeper than Python follows."
    here = os.getcwd()
    os.chdir(GIVEN.workdir)
    for _ in range(int(levels)):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)
    return "done"


@tool(mb=NUMBER)
def complain(id, mb):
    "So many megabytes of error output, once the call has been answered."

    def write_all():
        for _ in range(int(mb)):
            os.write(2, b"x" * 1_000_000)

    threading.Timer(0.1, write_all).start()
    return "done"


@tool(name=TEXT)
def env(id, name):
    "The value of an environment variable."
    return os.environ.get(name, "")


@tool()
def surroundings(id):
    "Everything the process can see of where it runs."
    home = Path(os.environ.get("HOME", "/nowhere"))
    return json.dumps(
        {
            "environment": dict(os.environ),
            "cwd": os.getcwd(),
            "cwd_files": sorted(os.listdir()),
            "pid": os.getpid(),
            "home": str(home),
            "home_files": sorted(p.name for p in home.iterdir()) if home.is_dir() else None,
            "files_open": len(os.listdir("/proc/self/fd")) - 1,
        }
    )


@tool(seconds=NUMBER)
def slow(id, seconds):
    "An answer after a while; other calls are answered meanwhile."
    threading.Timer(seconds, answer, (id, "done")).start()


@tool()
def noise(id):
    "An answer after lines that are no messages."
    write(b"INFO starting up\n\n  42\n[1, 2]\n")
    return "done"


@tool()
def crash(id):
    "The end of the process, in the middle of the call."
    print("about to crash with", dict(os.environ), sys.argv, file=sys.stderr, flush=True)
    os._exit(3)


@tool(path=TEXT, times=NUMBER)
def flaky(id, path, times):
    "A line more in a file outside, then a crash, the first few times."
    with open(path, "a") as f:
        f.write("called\n")
    called = len(Path(path).read_text().splitlines())
    if called <= times:
        os._exit(3)
    return f"call {called}"


@tool()
def hang(id):
    "No answer, never again; deaf to polite requests."
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


@tool()
def malformed(id):
    "Half an answer."
    write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"ty\n' % id)


@tool()
def wrong_id(id):
    "An answer to a question nobody asked."
    answer(987654321, "for somebody else")


@tool()
def non_utf8(id):
    "An answer with a byte that is no text."
    write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "caf\xe9"}]' % id)
    write(b', "resultType": "complete"}}\n')


@tool(mb=NUMBER)
def huge(id, mb):
    "An answer of so many megabytes, in one line."
    write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "' % id)
    for _ in range(int(mb)):
        write(b"x" * 1_000_000)
    write(b'"}]}}\n')


@tool(detached=FLAG)
def spawn_child(id, detached):
    "The pid of a child that would outlive the server: one that holds its pipes, or one in a session of its own."
    own = (
        dict(start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if detached
        else {}
    )
    return str(subprocess.Popen(["sleep", "900"], **own).pid)


@tool()
def change_tools(id):
    "A new tool list, from now on."
    GIVEN.tools += 1
    say(method="notifications/tools/list_changed")
    return "changed"


@tool(text=TEXT | {"pattern": EVIL})
def evil_input(id, text):
    "The text, if a hostile pattern lets it through."
    return text


@tool(output={"type": "object", "properties": {"text": TEXT | {"pattern": EVIL}}, "patternProperties": {EVIL: TEXT}})
def evil_output(id):
    "A result that takes for ever to check."
    answer(id, VICTIM, structuredContent={"text": VICTIM, VICTIM: VICTIM})


def tool_list():
    tools = [about for _, about in TOOLS.values()]
    return tools + [
        {"name": f"extra_{n}", "description": "New.", "inputSchema": {"type": "object"}}
        for n in range(2, GIVEN.tools + 1)
    ]


def handle(id, method, params):
    if GIVEN.new and method in ("initialize", "ping"):
        supported = {"supported": [NEWEST], "requested": params.get("protocolVersion", "")}
        code = -32022 if method == "initialize" else -32601
        say(id=id, error={"code": code, "message": f"there is no {method}", "data": supported})
    elif GIVEN.new and method == "server/discover":
        say(id=id, result=complete({"supportedVersions": [NEWEST], "capabilities": {"tools": {}}}, True))
    elif method == "initialize":
        info = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "faulty", "version": "1"},
        }
        say(id=id, result=info)
    elif method == "ping":
        say(id=id, result={})
    elif method == "tools/list":
        say(id=id, result=complete({"tools": tool_list()}, True))
    elif method != "tools/call" or params["name"] not in TOOLS:
        say(id=id, error={"code": -32601, "message": f"there is no {params.get('name', method)}"})
    else:
        try:
            text = TOOLS[params["name"]][0](id, **params.get("arguments") or {})
        except Exception as e:
            return answer(id, f"{type(e).__name__}: {e}", isError=True)
        if text is not None:
            answer(id, text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=lambda given: int(Path(given).read_text() if Path(given).is_file() else given))
    parser.add_argument("--workdir", type=Path)
    parser.add_argument("--new", action="store_true")
    parser.parse_known_args(namespace=GIVEN)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            handle(message["id"], message["method"], message.get("params") or {})


if __name__ == "__main__":
    main()
