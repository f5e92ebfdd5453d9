"""A streamable-HTTP server that says "later", or more than one can take.

Standard library only; the first line it prints is its URL. A call refused with 429 was not carried out: `calls` counts
those that were.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = {
    "ok": {"text": TEXT},
    "limited": {"times": NUMBER},
    "calls": {},
    "huge": {"mb": NUMBER},
    "fail": {"status": NUMBER},
}
CALLS, REFUSED = [], {}


def tool_list():
    schema = lambda properties: {"type": "object", "properties": properties, "required": list(properties)}
    return [
        {"name": name, "description": name, "inputSchema": schema(properties)} for name, properties in TOOLS.items()
    ]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(body),
            "Mcp-Session-Id": "one",
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, id, result):
        self.send(200, json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())

    def text(self, id, text):
        self.answer(id, {"content": [{"type": "text", "text": text}]})

    def do_GET(self):
        self.send(405)

    def do_DELETE(self):
        self.send(200)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        id, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize":
                about = {"serverInfo": {"name": "limited", "version": "1"}, "capabilities": {"tools": {}}}
                self.answer(id, {"protocolVersion": params["protocolVersion"], **about})
            case "tools/list":
                self.answer(id, {"tools": tool_list()})
            case "tools/call":
                self.call(id, params["name"], params.get("arguments") or {})
            case _:
                self.send(202) if id is None else self.answer(id, {})

    def call(self, id, name, given):
        if name == "limited" and REFUSED.setdefault(id, 0) < given["times"]:
            REFUSED[id] += 1
            return self.send(429, b"later", Retry_After=1)
        if name == "fail":
            return self.send(int(given["status"]), b"no", Location="http://elsewhere.invalid/mcp")
        if name == "calls":
            return self.text(id, " ".join(CALLS))
        CALLS.append(name)
        self.text(id, given.get("text", "done") if name != "huge" else "x" * int(1e6 * given["mb"]))


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}/mcp", flush=True)
    server.serve_forever()
