"""An MCP server that tells every secret it was given: in its description and its tools, in results, refusals, errors
and its error output.

It speaks plain JSON-RPC over stdio, or over HTTP with `--http`, and needs only the standard library; `make_server`
makes one for the same process.
"""

import base64, html, json, logging, os, sys, urllib.parse

KNOWN_BY_ALL = (
    "PATH",
    "HOME",
    "USERPROFILE",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "PYTHONPATH",
    "MCP_GRPO_ROLLOUT",
    "LC_CTYPE",
)
WAYS = {  # how a text may be said
    "as it is": str,
    "in JSON": json.dumps,
    "in JSON twice": lambda text: json.dumps(json.dumps({"said": text})),
    "as Python": lambda text: repr([text]),
    "for HTML": html.escape,
    "for an address": urllib.parse.quote,
    "for a form": urllib.parse.quote_plus,
    "with slashes escaped": lambda text: json.dumps(text).replace("/", "\\/"),
    "in hexadecimal": lambda text: text.encode().hex(),
    "in base64": lambda text: base64.b64encode(text.encode()).decode(),
    "in base64 after another": lambda text: base64.urlsafe_b64encode(b"user:" + text.encode()).decode(),
}
TOOLS = {
    "tell": "In one of the ways.",
    "refuse": "As a mistake of the caller.",
    "fail": "As an error of the server.",
    "log": "In the log.",
    "crash": "As the last words.",
}


def given() -> list[str]:
    "What a process was given: the values of its environment, and its arguments."
    return [value for name, value in os.environ.items() if name not in KNOWN_BY_ALL] + sys.argv[1:]


def parts_of(request) -> list[str]:
    "What an HTTP request says: its address and its headers, and the user and the password in them."
    said = [
        request.path,
        *urllib.parse.unquote(request.path).partition("?")[2].split("=")[1:2],
        *request.headers.values(),
    ]
    return said + [
        base64.b64decode(value.split()[1]).decode() for value in request.headers.values() if value.startswith("Basic ")
    ]


def answer(method: str, params: dict, told: list[str]) -> dict:
    "What is answered to a request: `result` or `error`."
    everything = " | ".join(told)
    if method == "initialize":
        return {
            "result": {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": everything, "version": everything},
                "instructions": f"I was given {everything}",
            }
        }
    if method == "tools/list":
        schema = {
            "type": "object",
            "properties": {"way": {"type": "string", "description": everything, "default": everything}},
        }
        return {
            "result": {
                "tools": [
                    {"name": name, "title": everything, "description": f"{text} {everything}", "inputSchema": schema}
                    for name, text in TOOLS.items()
                ]
            }
        }
    if method != "tools/call":
        return {"result": {}}
    tool, way = params["name"], (params.get("arguments") or {}).get("way", "as it is")
    text = "\n".join(map(WAYS.get(way, str), told))
    if tool == "fail":
        return {"error": {"code": -32603, "message": text, "data": told}}
    if tool == "log":
        print(text, file=sys.stderr, flush=True)
    if tool == "crash":
        print(text, file=sys.stderr, flush=True)
        os._exit(3)
    content = [
        {"type": "text", "text": text},
        {"type": "resource_link", "name": way, "uri": "file:///" + urllib.parse.quote(told[0])},
    ]
    return {
        "result": {
            "content": content,
            "structuredContent": {"said": told, **{text: way for text in told}},
            "isError": tool == "refuse",
            "_meta": {"said": told},
        }
    }


def serve_stdio() -> None:
    print(*given(), file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(
                json.dumps(
                    {
                        "jsonrpc": "2.0",
                        "id": message["id"],
                        **answer(message["method"], message.get("params") or {}, given()),
                    }
                ),
                flush=True,
            )


def serve_http() -> None:
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do_GET(self):
            self.send(405)

        def do_DELETE(self):
            self.send(200)

        def send(self, status, body=b""):
            self.send_response(status, " ".join(parts_of(self)[:1]))
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": len(body),
                "Mcp-Session-Id": "one",
                "X-Said": self.path,
            }.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in message:
                return self.send(202)
            params = message.get("params") or {}
            if params.get("name") == "crash":
                return self.send(500, "\n".join(parts_of(self)).encode())
            self.send(
                200,
                json.dumps(
                    {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], params, parts_of(self))}
                ).encode(),
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def make_server(**options: str):
    "A server in this process that tells its options, and what of the environment begins with `TELL_`."
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    told = [*options.values(), *(value for name, value in os.environ.items() if name.startswith("TELL_"))]
    server = MCPServer("teller", instructions=" ".join(told), log_level="DEBUG")

    def tell(way: str = "as it is") -> str:
        return "\n".join(map(WAYS.get(way, str), told))

    def refuse(way: str = "as it is") -> str:
        raise ToolError(tell(way))

    def fail(way: str = "as it is") -> str:
        raise ValueError(tell(way))

    def log(way: str = "as it is") -> str:
        logging.getLogger("teller").debug("I was given %s and %r", told[0], told, exc_info=KeyError(told[0]))
        return "logged"

    def crash(way: str = "as it is") -> str:
        raise SystemExit(tell(way))

    for tool in (tell, refuse, fail, log, crash):
        server.tool(description=f"{tool.__name__} {' '.join(told)}")(tool)
    return server


def refuses_to_be_made(**options: str):
    raise ValueError(f"I was given {options}")


if __name__ == "__main__":
    serve_http() if "--http" in sys.argv else serve_stdio()
