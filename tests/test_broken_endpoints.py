"Endpoints that answer as no endpoint should: one sentence, within the time, and nothing is sent elsewhere."

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from mcp_grpo.aio import run_sync
from mcp_grpo.config import ConfigError
from mcp_grpo.endpoint import Endpoint, EndpointError, endpoint_settings
from mcp_grpo.observe.evaluate import endpoint_writer
from mcp_grpo.rollout.remote import Server, ServerError
from pydantic import BaseModel


class Answer(BaseModel):
    value: int


def completion(content="{}", **more) -> bytes:
    "A chat completion as JSON."
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return json.dumps(reply | more).encode()


BOMB = gzip.compress(b'{"choices": "' + b"a" * 60_000_000 + b'"}')
REPLIES = {  # name -> status, headers, body
    "a page of HTML": (200, {"Content-Type": "text/html"}, b"<html><body>Welcome</body></html>"),
    "HTML called JSON": (200, {}, b"<html></html>"),
    "nothing": (200, {}, b""),
    "null": (200, {}, b"null"),
    "a list": (200, {}, b"[]"),
    "a number": (200, {}, b"7"),
    "no choices": (200, {}, completion(choices=[])),
    "choices that are null": (200, {}, completion(choices=None)),
    "choices that are a text": (200, {}, completion(choices="yes")),
    "a choice that is null": (200, {}, completion(choices=[None])),
    "a choice without a message": (200, {}, completion(choices=[{"index": 0}])),
    "a message that is a text": (200, {}, completion(choices=[{"index": 0, "message": "hello"}])),
    "choices that are numbers": (200, {}, completion(choices=[1])),
    "an error with status 200": (200, {}, b'{"error": {"message": "overloaded"}}'),
    "keys without quotes": (200, {}, b"{choices: []}"),
    "content that is a list": (200, {}, completion(content=[1, 2])),
    "half of the JSON": (200, {}, completion()[:40]),
    "a thousand lists": (200, {}, b"[" * 1000 + b"]" * 1000),
    "bytes that are no text": (200, {}, b"\xff\xfe\x00{"),
    "a bomb": (200, {"Content-Encoding": "gzip"}, BOMB),
    "thirty megabytes": (200, {}, completion("a" * 30_000_000)),
    "a redirect to another host": (307, {"Location": "http://127.0.0.2:9/v1/chat/completions"}, b""),
    "not found": (404, {}, b"nothing here"),
    "an error of the server": (500, {}, b"oops"),
    "a text after an error": (418, {"Content-Type": "text/html"}, b"<h1>teapot</h1>"),
    "a drip": (200, {}, None),
}


@pytest.fixture(scope="module")
def server():
    "A server that sends what `server.reply` says."

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = http.reply
            self.send_response(status)
            for name, value in ({"Content-Type": "application/json"} | headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(1000 if body is None else len(body)))
            self.end_headers()
            try:
                for part in [body] if body is not None else [b" "] * 1000:
                    self.wfile.write(part)
                    self.wfile.flush()
                    time.sleep(0 if body is not None else 0.2)
            except OSError:
                pass  # the client has had enough

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield http
    http.shutdown()


@pytest.mark.parametrize("kind", REPLIES)
def test_a_broken_endpoint_gives_one_sentence_in_time(kind, server):
    server.reply, url = REPLIES[kind], f"http://127.0.0.1:{server.server_port}/v1"
    asked = [{"role": "user", "content": "1"}]
    started = time.monotonic()
    endpoint = Endpoint(endpoint_settings(model="m", url=url, key="k", retries=0, timeout=2.0))
    with pytest.raises(EndpointError) as told:
        run_sync(endpoint.ask, asked, Answer)
    assert "\n" not in str(told.value) and len(str(told.value)) < 500
    ask = endpoint_writer("m", url, tries=1, timeout=2.0)(None)
    with pytest.raises(ConfigError) as told:
        run_sync(ask, asked)
    assert len(str(told.value)) < 700
    assert time.monotonic() - started < 60  # the drip would last for 200 s


def sampled(ids, figures, **more) -> tuple:
    "A completion as `vllm serve` gives it."
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": figures}, "finish_reason": "stop"} | more
    return 200, {}, json.dumps({"choices": [choice]}).encode()


COMPLETIONS = {
    "ids that are texts": sampled(["1", "2"], [-1.0, -1.0]),
    "ids that are fractions": sampled([1.5], [-1.0]),
    "ids below zero": sampled([-1], [-1.0]),
    "ids that are true": sampled([True], [-1.0]),
    "more ids than were asked for": sampled([1] * 100_000, [-1.0] * 100_000),
    "no ids": sampled([], []),
    "fewer logprobs than ids": sampled([1, 2], [-1.0]),
    "a logprob that is no number": sampled([1], [float("nan")]),
    "a logprob that is null": sampled([1], [None]),
    "logprobs that are a list": sampled([1], [], logprobs=[-1.0]),
    "no logprobs": sampled([1], [], logprobs=None),
    "an end that is a number": sampled([1], [-1.0], finish_reason=7),
}
NO_ANSWERS = ("content that is a list", "a drip")  # of chat alone; a request may take ten minutes here


@pytest.mark.parametrize("kind", [*COMPLETIONS, *(kind for kind in REPLIES if kind not in NO_ANSWERS)])
def test_what_a_broken_sampler_returns_is_never_taken(kind, server):
    server.reply = (COMPLETIONS | REPLIES)[kind]

    async def sample():
        async with httpx2.AsyncClient(trust_env=False) as client:
            remote = Server(f"http://127.0.0.1:{server.server_port}", serves="m")
            return await remote.sample(client, [1, 2], max_tokens=8, temperature=1.0, logprobs=0)

    with pytest.raises(ServerError) as told:
        run_sync(sample)
    assert "\n" not in str(told.value) and len(str(told.value)) < 500


def test_a_drip_ends_with_its_request(server):
    server.reply = REPLIES["a drip"]

    async def ask():
        async with httpx2.AsyncClient(trust_env=False) as client:
            remote = Server(f"http://127.0.0.1:{server.server_port}")
            await remote.request(client, "POST", "/v1/completions", seconds=1.0, json={})

    with pytest.raises(ServerError, match="no complete answer within 1 s"):
        run_sync(ask)
