"""An MCP server that answers in ways that no client should have to bear: a million values in a message, requests
without end, half an answer.

Plain JSON-RPC and only the standard library. `wild.py` speaks over stdio, `wild.py --http` over streamable HTTP and
prints its URL first. The one tool is called `wild`; its argument `mode` says what comes of the call. `--list KIND` is
how the tools are listed.
"""

import argparse, gzip, json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MB = 1_000_000
TOOL = {
    "name": "wild",
    "inputSchema": {"type": "object", "properties": {"mode": {"type": "string"}, "text": {"type": "string"}}},
}


def answer(id, result: str) -> bytes:
    return ('{"jsonrpc":"2.0","id":%d,"result":%s}' % (id, result)).encode()


def error(id, body: str) -> bytes:
    return ('{"jsonrpc":"2.0","id":%d,"error":%s}' % (id, body)).encode()


def text(content: str, more: str = "") -> str:
    return '{"content":[{"type":"text","text":"%s"}]%s}' % (content, more)


def rows(values: str) -> str:
    return '{"content":[],"structuredContent":{"rows":[%s]}}' % values


OK, FAULT, ANY = "ok", "fault", "any"  # how a call has to end: with a result, with a fault, in either way

PAYLOADS = {  # mode: (how it ends, the answer to the request `id`), over every transport
    "fine": (OK, lambda id: answer(id, text("fine"))),
    "a million lists": (FAULT, lambda id: answer(id, rows("[]," * 1_300_000 + "0"))),
    "a million numbers": (FAULT, lambda id: answer(id, rows("1," * 1_900_000 + "0"))),
    "a million empty texts": (FAULT, lambda id: answer(id, rows('"",' * 1_200_000 + "0"))),
    "many keys": (FAULT, lambda id: answer(id, rows("{" + ",".join(f'"{i}":0' for i in range(350_000)) + "}"))),
    "the same key again and again": (FAULT, lambda id: answer(id, rows("{" + '"a":0,' * 600_000 + '"a":0}'))),
    "empty text blocks": (
        FAULT,
        lambda id: answer(id, '{"content":[%s]}' % ",".join(['{"type":"text","text":""}'] * 140_000)),
    ),
    "as many blocks as are let through": (
        ANY,
        lambda id: answer(id, '{"content":[%s]}' % ",".join(['{"type":"text","text":""}'] * 5_900)),
    ),
    "blocks of no known kind": (
        FAULT,
        lambda id: answer(id, '{"content":[%s]}' % ",".join(['{"type":"x","text":""}'] * 5_900)),
    ),
    "resource links": (
        ANY,
        lambda id: answer(
            id, '{"content":[%s]}' % ",".join(['{"type":"resource_link","name":"a","uri":"b:c"}'] * 4_200)
        ),
    ),
    "annotations": (
        ANY,
        lambda id: answer(id, '{"content":[%s]}' % ",".join(['{"type":"text","text":"","annotations":{}}'] * 3_600)),
    ),
    "as many lists as are let through": (OK, lambda id: answer(id, rows("[]," * 14_900 + "0"))),
    "as many keys as are let through": (
        OK,
        lambda id: answer(id, rows("{" + ",".join(f'"{i}":0' for i in range(14_900)) + "}")),
    ),
    "values in _meta": (FAULT, lambda id: answer(id, text("x", ',"_meta":{"a":[%s0]}' % ("{}," * 900_000)))),
    "deeply nested": (FAULT, lambda id: answer(id, rows("[" * 1_900_000 + "]" * 1_900_000))),
    "nested, few enough": (FAULT, lambda id: answer(id, rows("[" * 29_000 + "]" * 29_000))),
    "NaN and Infinity": (OK, lambda id: answer(id, rows("NaN,-Infinity,1e999,1"))),
    "many NaN": (OK, lambda id: answer(id, rows("NaN," * 28_000 + "0"))),
    "an integer of millions of digits": (ANY, lambda id: answer(id, rows("7" * 3_900_000))),
    "a fraction of millions of digits": (ANY, lambda id: answer(id, rows("0." + "7" * 3_900_000))),
    "a long text": (OK, lambda id: answer(id, text("x" * 3_900_000))),
    "a long text with one wide character": (OK, lambda id: answer(id, text("x" * 3_899_000 + "\U0001f600"))),
    "a text of escapes": (OK, lambda id: answer(id, text('\\"' * 1_900_000))),
    "a text of unicode escapes": (OK, lambda id: answer(id, text("\\u00e9" * 640_000))),
    "lone surrogates": (ANY, lambda id: answer(id, text("\\ud83d" * 600_000))),
    "a table as a text": (OK, lambda id: answer(id, text('[{\\"a\\":1,\\"b\\":[2,3]}],' * 150_000))),
    "a key of 4 MB": (OK, lambda id: answer(id, rows('{"%s":1}' % ("k" * 3_800_000)))),
    "blanks": (OK, lambda id: answer(id, " " * 3_900_000 + text("x"))),
    "longer than allowed": (FAULT, lambda id: answer(id, text("x" * 6 * MB))),
    "half an answer": (FAULT, lambda id: answer(id, text("x"))[:-5]),
    "not an object": (FAULT, lambda id: answer(id, '["x"]')),
    "no result": (FAULT, lambda id: b'{"jsonrpc":"2.0","id":%d}' % id),
    "an error of 3.9 MB": (ANY, lambda id: error(id, '{"code":-32603,"message":"%s"}' % ("e" * 3_900_000))),
    "an error with data": (
        FAULT,
        lambda id: error(id, '{"code":-32603,"message":"e","data":[%s0]}' % ("0," * 1_000_000)),
    ),
    "an error without a code": (FAULT, lambda id: error(id, '{"message":"e"}')),
    "a pause of a year": (
        FAULT,
        lambda id: answer(
            id, text("later", ',"isError":true,"_meta":{"mcp_grpo/fault":{"fault":"rate_limit","retry_after":3e7}}')
        ),
    ),
    "a pause of NaN": (
        FAULT,
        lambda id: answer(
            id, text("later", ',"isError":true,"_meta":{"mcp_grpo/fault":{"fault":"rate_limit","retry_after":NaN}}')
        ),
    ),
    "an answer to another request": (FAULT, lambda id: answer(id + 77_000, text("x"))),
}

STDIO = {
    "crash": FAULT,
    "hang": FAULT,
    "hang with a full pipe": FAULT,
    "a line without an end": FAULT,
    "pings, and reads nothing": FAULT,
    "large requests": FAULT,
    "notifications": OK,
    "progress": OK,
    "error output": OK,
    "empty lines": OK,
    "a log on the wrong stream": OK,
    "a byte at a time": FAULT,
    "closes its output": FAULT,
}
HTTP = {
    "an event of many values": FAULT,
    "many values in many events": FAULT,
    "an event without an end": FAULT,
    "comments": FAULT,
    "pings in the answer": FAULT,
    "pings on the stream": OK,
    "values on the stream": OK,
    "a packed answer": FAULT,
    "no answer": FAULT,
    "a byte at a time": FAULT,
    "retry in a year": FAULT,
    "an error page": FAULT,
    "accepted": FAULT,
    "elsewhere": FAULT,
    "notes are never accepted": FAULT,
    "a broken event": FAULT,
}
LISTS = {  # kind: (whether a session can be opened, the pages of the list)
    "20,000 tools": (
        False,
        lambda: [[TOOL] + [{"name": f"t{i}", "inputSchema": {"type": "object"}} for i in range(20_000)]],
    ),
    "20 pages": (
        False,
        lambda: [[{"name": f"t{p}-{i}", "inputSchema": {"type": "object"}} for i in range(4_000)] for p in range(20)],
    ),
    "pages without an end": (True, lambda: [[TOOL]] + [[]] * 200),
    "a schema of many values": (
        False,
        lambda: [[TOOL | {"inputSchema": {"type": "object", "enum": [[]] * 1_000_000}}]],
    ),
    "large schemas on every page": (
        False,
        lambda: [[{"name": f"t{p}", "inputSchema": {"type": "object", "enum": [0] * 28_000}}] for p in range(20)],
    ),
    "a deep schema": (
        True,
        lambda: [
            [
                TOOL,
                {
                    "name": "deep",
                    "inputSchema": {"type": "object", "properties": json.loads('{"a":' * 90 + "{}" + "}" * 90)},
                },
            ]
        ],
    ),
    "a long description": (True, lambda: [[TOOL | {"description": "d" * 1_900_000}]]),
    "NaN in a schema": (
        True,
        lambda: [
            [TOOL, {"name": "nan", "inputSchema": {"type": "object", "properties": {"x": {"default": float("nan")}}}}]
        ],
    ),
    "tools that are none": (False, lambda: [[{"title": 7}] * 9_000]),
    "an empty list": (True, lambda: [[]]),
}

GIVEN = argparse.Namespace(list="")
_PAGES = []


def listed(cursor) -> str:
    "A page of the tool list."
    if not _PAGES:
        _PAGES.extend(LISTS[GIVEN.list][1]() if GIVEN.list else [[TOOL]])
    at = int(cursor or 0)
    return json.dumps(
        {"tools": _PAGES[at]} | ({"nextCursor": str(at + 1)} if at + 1 < len(_PAGES) else {}), separators=(",", ":")
    )


def greeting(params) -> str:
    return json.dumps(
        {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "wild", "version": "1"},
        }
    )


# ---- over stdio


def write(data: bytes):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def misbehave(id, mode):
    "The modes that only a process has."
    fine = answer(id, text("done")) + b"\n"
    if mode == "crash":
        os._exit(3)
    if mode.startswith("hang"):
        time.sleep(3600)
    if mode == "a line without an end":
        while True:
            write(b'{"jsonrpc":' * 10_000)
    if mode == "pings, and reads nothing":
        for i in range(100_000_000):
            write(b'{"jsonrpc":"2.0","id":"p%d","method":"ping"}\n' % i)
    if mode == "large requests":
        for i in range(1000):
            write(b'{"jsonrpc":"2.0","id":"p%d","method":"ping","params":{"_meta":{"a":"%s"}}}\n' % (i, b"x" * MB))
    if mode == "notifications":
        for _ in range(3_000):
            write(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n')
    if mode == "progress":
        for i in range(3_000):
            write(
                b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":%d}}\n'
                % (id, i)
            )
    if mode == "error output":
        for _ in range(20):
            os.write(2, b"x" * MB)
    if mode == "empty lines":
        write(b"\n" * 3 * MB)
    if mode == "a log on the wrong stream":
        write(b"INFO [1, 2] done\n" * 50_000)
    if mode == "a byte at a time":
        for byte in answer(id, text("x" * 1000)):
            write(bytes([byte]))
            time.sleep(0.05)
    if mode == "closes its output":
        os.close(1)
        time.sleep(3600)
    write(fine)


def over_stdio():
    for line in sys.stdin.buffer:
        message = json.loads(line)
        id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if id is None or method is None:
            continue
        if method == "initialize":
            write(answer(id, greeting(params)) + b"\n")
        elif method == "tools/list":
            write(answer(id, listed(params.get("cursor"))) + b"\n")
        elif method != "tools/call":
            write(answer(id, "{}") + b"\n")
        elif (mode := params["arguments"]["mode"]) in PAYLOADS:
            write(PAYLOADS[mode][1](id) + b"\n")
        else:
            misbehave(id, mode)


# ---- over HTTP: the same answers as a JSON body or, where the mode begins with "event: ", as an event

SESSIONS, LOUD, STUCK = [], {}, set()  # LOUD: session -> what its stream says


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def finish(self):
        try:
            super().finish()
        except OSError:
            pass

    def begin(self, status=200, kind="application/json", length=None, **headers):
        self.send_response(status)
        size = {"Content-Length": length} if length is not None else {"Connection": "close"}
        for name, value in {"Content-Type": kind, "Mcp-Session-Id": self.session, **size, **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, body=b"", status=200, kind="application/json", **headers):
        self.begin(status, kind, len(body), **headers)
        self.wfile.write(body)

    def say(self, *parts: bytes):
        for part in parts:
            self.wfile.write(part)
        self.wfile.flush()

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    @property
    def session(self):
        return self.headers.get("Mcp-Session-Id") or self.opened

    def do_DELETE(self):
        self.send()

    def do_GET(self):
        self.begin(kind="text/event-stream")
        self.say(b": hello\n\n")
        until = time.monotonic() + 60
        while self.session not in LOUD and time.monotonic() < until:
            time.sleep(0.02)
        for i in range(300_000):
            self.say(
                b'data: {"jsonrpc":"2.0","id":"s%d","method":"ping"}\n\n' % i
                if LOUD.get(self.session) == "pings"
                else b'data: {"jsonrpc":"2.0","method":"x","params":{"a":[%s0]}}\n\n' % (b"[]," * 900_000)
            )
            if time.monotonic() > until:
                return
        self.close_connection = True

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "initialize":
            self.opened = f"session{len(SESSIONS)}"
            SESSIONS.append(self.opened)
            return self.send(answer(id, greeting(params)))
        if id is None or method is None:
            if self.session in STUCK:
                time.sleep(30)
            return self.send(status=202)
        if method == "tools/list":
            return self.send(answer(id, listed(params.get("cursor"))))
        if method != "tools/call":
            return self.send(answer(id, "{}"))
        mode = params["arguments"]["mode"]
        if mode.startswith("event: "):
            return self.events(b"event: message\ndata: " + PAYLOADS[mode[7:]][1](id) + b"\n\n")
        self.send(PAYLOADS[mode][1](id)) if mode in PAYLOADS else self.misbehave(id, mode)

    def events(self, *parts: bytes):
        self.begin(kind="text/event-stream")
        self.say(*parts)
        self.close_connection = True

    def misbehave(self, id, mode):
        "The modes that only HTTP has."
        fine = answer(id, text("done"))
        many = b'data: {"jsonrpc":"2.0","method":"x","params":{"a":[%s0]}}\n\n'
        if mode == "an event of many values":
            self.events(many % (b"0," * 1_900_000))
        elif mode == "many values in many events":
            self.events(*[many % (b"[]," * 14_000)] * 200, b"data: " + fine + b"\n\n")
        elif mode == "an event without an end":
            self.events(*[b"data: " + b"x" * MB] * 40)
        elif mode == "comments":
            self.events(*[b":\n\n" * 300_000] * 40)
        elif mode == "pings in the answer":
            STUCK.add(self.session)
            self.events(*[b'data: {"jsonrpc":"2.0","id":"a%d","method":"ping"}\n\n' % i for i in range(200_000)])
        elif mode == "pings on the stream":
            STUCK.add(self.session)
            LOUD[self.session] = "pings"
            time.sleep(0.3)
            self.send(fine)
        elif mode == "values on the stream":
            LOUD[self.session] = "values"
            time.sleep(0.3)
            self.send(fine)
        elif mode == "a packed answer":
            self.send(gzip.compress(answer(id, text("x" * 60 * MB)), 1), Content_Encoding="gzip")
        elif mode == "no answer":
            time.sleep(8)
        elif mode == "a byte at a time":
            self.begin()
            for byte in answer(id, text("x" * 1000)):
                self.say(bytes([byte]))
                time.sleep(0.05)
        elif mode == "retry in a year":
            self.send(b"later", 429, "text/plain", Retry_After=30_000_000)
        elif mode == "an error page":
            self.send(b"<h1>" * 500_000, 502, "text/html")
        elif mode == "accepted":
            self.send(status=202)
        elif mode == "elsewhere":
            self.send(status=302, Location="http://elsewhere.invalid/mcp")
        elif mode == "notes are never accepted":
            STUCK.add(self.session)
            time.sleep(8)
        elif mode == "a broken event":
            self.events(b'data: {"jsonrpc"\n\n')


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--list", default="")
    parser.add_argument("--http", action="store_true")
    parser.parse_args(namespace=GIVEN)
    if not GIVEN.http:
        return over_stdio()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"http://127.0.0.1:{server.server_port}/mcp", flush=True)
    threading.Thread(
        target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True
    ).start()  # ends with whoever started it
    server.serve_forever()


if __name__ == "__main__":
    main()
