"""The embedded servers as programs: both command lines, over stdio and HTTP, who is let in; and that slack reaches
nobody."""

import json, os, subprocess, sys
from contextlib import contextmanager

import anyio
import httpx2
import pytest
from conftest import ROOT

from mcp_grpo.client.pool import Pool
from mcp_grpo.client.session import Session, SessionError
from mcp_grpo.client.spec import EMBEDDED, ServerSpec

CALLS = {
    "polygon": ("get_market_status", {}),
    "fmp": ("fmp_get_market_gainers", {}),
    "slack": ("slack_list_channels", {}),
    "tavily": ("tavily_search", {"query": "steel"}),
    "python": ("execute_python", {"code": "6 * 7"}),
}
DOORS = {"command": ["mcp_grpo.cli", "serve", "{}"], "module": ["mcp_grpo.servers.{}"]}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "MCP_GRPO_TOKEN"}


def command(door: str, name: str, *options) -> list:
    return [sys.executable, "-m", *(word.format(name) for word in DOORS[door]), *options]


@contextmanager
def over_http(name: str, *options, door="command", token=""):
    "A server's url and token, and the line it says when it is ready."
    environment = ENVIRONMENT | ({"MCP_GRPO_TOKEN": token} if token else {})
    process = subprocess.Popen(
        command(door, name, "--http", "--port", "0", *options),
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    try:
        line = process.stderr.readline()
        yield line.split()[1], token or line.split()[-1], line
        process.terminate()
        assert process.wait(120) is not None
        assert not [
            line for line in process.stderr if "running task(s)" not in line
        ]  # uvicorn may end a stream that is still open
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def spec(url: str, token: str, **more) -> ServerSpec:
    return ServerSpec("there", url=url, headers={"Authorization": f"Bearer {token}"} if token else {}, **more)


@pytest.mark.parametrize("name", EMBEDDED)
def test_over_http(name):
    tool, arguments = CALLS[name]

    async def talk(there):
        async with Session(there) as session:
            return list(session.tools), await session.call(tool, arguments)

    with over_http(name, "--tools", tool) as (url, token, line):
        tools, result = anyio.run(talk, spec(url, token))
    assert tools == [tool] and not result.is_error and not result.fault and result.content.startswith("{")
    assert line.startswith(f"{name}: http://127.0.0.1:") and len(token) >= 32


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", ["polygon", "python"])
def test_over_stdio(name, door):
    tool, arguments = CALLS[name]
    words = command(door, name, "--tools", tool, "--world-seed", "1")

    async def talk():
        async with Session(
            ServerSpec(
                name, command=words[0], args=words[1:], cwd=str(ROOT), pass_env=["PYTHONPATH"], start_timeout=120
            )
        ) as session:
            return list(session.tools), await session.call(tool, arguments)

    tools, result = anyio.run(talk)
    assert tools == [tool] and not result.is_error and not result.fault


def test_nobody_is_let_in_without_the_token():
    async def enter(there):
        with pytest.raises(SessionError, match="401") as e:
            async with Session(there):
                pass
        return e.value.fault

    with over_http("polygon") as (url, token, _):
        faults = [anyio.run(enter, spec(url, given)) for given in ("", "guessed", token[:-1])]
        rebound = httpx2.post(
            url, json={}, headers={"Authorization": f"Bearer {token}", "Host": "evil.example"}
        ).status_code
        page = httpx2.post(
            url,
            json={},
            headers={
                "Authorization": f"Bearer {token}",
                "Origin": "http://evil.example",
                "Content-Type": "application/json",
            },
        ).status_code
    assert set(faults) == {"transport"} and (rebound, page) == (421, 403)


def test_a_token_of_ones_own_is_not_shown():
    with over_http("polygon", token="a token that was chosen") as (url, _, line):
        assert "token" not in line and "Bearer" not in line and url.endswith("/mcp")


def test_http_sessions_are_kept_apart():
    channel = {"channel_id": "C001"}

    async def episode(pool, text):
        async with await pool.lease(["there"]) as lease:
            await lease.call("there", "slack_post_message", channel | {"text": text})
            return (await lease.call("there", "slack_get_channel_history", channel)).structured["messages"]

    async def prove(there):
        async with Pool({"there": there}) as pool:
            return [[m["text"] for m in await episode(pool, text)] for text in ("one", "two")]

    with over_http("slack") as (url, token, _):
        assert anyio.run(prove, spec(url, token)) == [["one"], ["two"]]


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--http", "--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines"),
        (["--http", "--host", "0.0.0.0", "--allow-host", "tools.lan"], "set MCP_GRPO_TOKEN"),
        (["--tools", "get_agg"], "did you mean get_aggs?"),
        (["--port", "80"], "--http"),
        (["--unsafe-no-sandbox"], "no option --unsafe-no-sandbox"),
        (["--live"], "POLYGON_API_KEY is not set"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_sentence(options, sentence, tmp_path):
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "POLYGON_API_KEY"} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run(
        command("command", "polygon", *options),
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=tmp_path,
    )
    assert (
        done.returncode == 1 and not done.stdout and sentence in done.stderr and len(done.stderr.splitlines()) == 1
    ), done.stderr


def test_both_command_lines_have_the_same_options():
    def options(door):
        return {
            word.strip(",")
            for word in subprocess.run(
                command(door, "polygon", "--help"), capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT
            ).stdout.split()
            if word.startswith("--")
        }

    assert options("command") == options("module") >= {"--http", "--port", "--tools", "--world-seed"}


@pytest.mark.parametrize("transport, calls", [("memory", 1000), ("stdio", 200)])
def test_slack_reaches_nobody_and_tells_no_token(transport, calls):
    done = subprocess.run(
        [sys.executable, ROOT / "tests/servers/canary.py", str(calls), transport],
        capture_output=True,
        text=True,
        timeout=300,
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"calls": calls, "leaked": [], "reached": [], "awake": True}
