"""An OpenAI-compatible endpoint on a local socket: chat completions and responses, with structured output, and the ways
in which they fail.

What it answers is a function of the messages and the wanted JSON schema; for None it sends a reply without an answer.
`failures` are HTTP statuses that the first requests get instead of an answer.
"""

import contextlib, json, threading, time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = "sk-local-52aa07d1c9"  # opens nothing


class OpenAIServer:
    "Answers, and what it was asked."

    def __init__(
        self,
        answer: Callable[[list[dict], dict], str],
        failures: tuple = (),
        seconds: float = 0.0,
        structured: bool = True,
    ):
        self.answer, self.failures, self.seconds, self.structured = answer, list(failures), seconds, structured
        self.asked, self.running, self.most, self.lock = [], 0, 0, threading.Lock()
        handler = type("Handler", (_Handler,), {"server_of": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def reply(self, path: str, body: dict) -> tuple[int, dict]:
        "The status and the body of a response."
        with self.lock:
            self.asked.append(body)
            self.running += 1
            self.most = max(self.most, self.running)
            failure = self.failures.pop(0) if self.failures else 0
        time.sleep(self.seconds)
        with self.lock:
            self.running -= 1
        if failure:
            return failure, {"error": {"message": f"failed with {failure}", "type": "server_error"}}
        wanted = body.get("response_format") or body.get("text", {}).get("format")
        if wanted and not self.structured:
            return 400, {"error": {"message": "response_format is not supported", "type": "invalid_request_error"}}
        schema = (wanted or {}).get("json_schema", wanted or {}).get("schema", {})
        messages = body.get("messages") or body["input"]
        text = self.answer(messages, schema)
        if path.endswith("/responses"):
            part = {"type": "output_text", "text": text, "annotations": []}
            return 200, {
                "id": "r1",
                "object": "response",
                "created_at": 0,
                "model": body["model"],
                "status": "completed",
                "parallel_tool_calls": False,
                "tool_choice": "auto",
                "tools": [],
                "output": [
                    {"id": "m1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
                ]
                if text is not None
                else None,
                "usage": {
                    "input_tokens": 10,
                    "input_tokens_details": {"cached_tokens": 0},
                    "output_tokens": 5,
                    "output_tokens_details": {"reasoning_tokens": 0},
                    "total_tokens": 15,
                },
            }
        return 200, {
            "id": "c1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]
            if text is not None
            else None,
        }


class _Handler(BaseHTTPRequestHandler):
    "One request."

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            status, found = 401, {"error": {"message": "wrong key", "type": "invalid_request_error"}}
        elif not self.path.endswith(("/chat/completions", "/responses")):
            status, found = 404, {"error": {"message": "no such path", "type": "invalid_request_error"}}
        else:
            status, found = self.server_of.reply(self.path, body)
        text = json.dumps(found).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", "0.05")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serve(answer: Callable[[list[dict], dict], str], **settings):
    "Serve answers on a free port of this machine."
    server = OpenAIServer(answer, **settings)
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
