"A server that stands where W&B's own stand: it takes what wandb and weave send over HTTP, and keeps it."

import json, threading, zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ACCOUNT = {"id": "1", "username": "me", "entity": "me", "flags": "{}", "teams": {"edges": []}}


class _Recorder(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.take(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") in ("gzip", "deflate"):
            body = zlib.decompress(body, 47)
        self.take(body)

    do_PUT = do_POST

    def take(self, body: bytes) -> None:
        self.server.received.append((self.command, self.path, dict(self.headers), body))
        status = self.server.status(self.path)
        answer = json.dumps(self.answer(body) if status == 200 else {"detail": "refused"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def answer(self, body: bytes) -> dict:
        "What the services answer, as far as their clients read it."
        if self.path.endswith("/server_info"):
            return {"min_required_weave_python_version": "0.0.1", "trace_server_version": "99.0.0"}
        if self.path.endswith("/graphql"):
            project = {"id": "1", "name": "desk", "entityName": "me", "entity": {"id": "1", "name": "me"}}
            return {"data": {"viewer": _ACCOUNT, "upsertModel": {"model": project, "project": project}, "model": None}}
        if self.path.endswith(("/obj/create", "/file/create", "/files/create", "/table/create")):
            return {"digest": "d" * 43, "row_digests": []}
        return {}

    def log_message(self, *_) -> None:
        pass


@contextmanager
def recording(status=lambda path: 200) -> Iterator[ThreadingHTTPServer]:
    "A server that listens on this machine; `received` holds (method, path, headers, body) of each request."
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Recorder)
    server.received, server.status = [], status
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
