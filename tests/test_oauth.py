"""Servers that ask for OAuth tokens: an authorization server and a protected MCP server on real sockets, a person
whose browser is a script, tokens that end, and what is written about all of it."""

import asyncio
import json
import logging
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import anyio
import httpx2
import pytest
from conftest import ROOT
from typer.testing import CliRunner

from mcp_grpo.aio import run_sync
from mcp_grpo.client.hardening.http import AccessError
from mcp_grpo.client.hardening.oauth import Access, forget_login, log_in
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.session import Session, SessionError
from mcp_grpo.client.spec import ServerSpec, SpecError
from mcp_grpo.client.tape import Tape
from mcp_grpo.env.episode import Episode
from mcp_grpo.task import Task

sys.path.insert(0, str(ROOT / "tests/servers"))
from authorizing import CLIENT, SECRET, Authority, Notes


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def authority():
    server = Authority().start()
    yield server
    server.stop()


@pytest.fixture
def notes(authority):
    server = Notes(authority).start()
    yield server
    server.stop()


def by_client(notes, **more) -> ServerSpec:
    "An entry with client credentials."
    auth = {"client_id": CLIENT, "client_secret": SECRET, "issuer": notes.authority.base} | more
    return ServerSpec("notes", url=notes.url, auth=auth, start_timeout=10.0)


def by_login(notes, **more) -> ServerSpec:
    "An entry with a login."
    return ServerSpec("notes", url=notes.url, auth="login", start_timeout=10.0, **more)


def browse(url: str, **changed: str) -> httpx2.Response:
    "What a browser does at the page of the authorization server, whose user agrees at once."
    return httpx2.get(httpx2.URL(url).copy_merge_params(changed) if changed else url, follow_redirects=True)


def browse_elsewhere(url: str) -> None:
    "The same in a process of its own, since the log of a browser is its own affair."
    program = "import httpx2, sys; httpx2.get(sys.argv[1], follow_redirects=True)"
    subprocess.run([sys.executable, "-c", program, url], check=True)


def log_in_at(spec: ServerSpec, **changed: str) -> str:
    return run_sync(log_in, spec, lambda url: browse(url, **changed))


def call(spec: ServerSpec, tool: str = "add", **arguments):
    "The result of one call in a session of its own."

    async def ask():
        async with Session(spec) as session:
            return await session.call(tool, arguments or {"text": "a"} if tool == "add" else arguments)

    return run_sync(ask)


def refusal(spec: ServerSpec) -> SessionError:
    "Why a session does not open."
    with pytest.raises(SessionError) as caught:
        call(spec)
    assert "\n" not in str(caught.value) and "Traceback" not in str(caught.value)
    return caught.value


def expire(spec: ServerSpec) -> None:
    "Let the kept token be one whose time is over, as after a night; the server forgets it too."
    access = Access(spec)
    kept = json.loads(access.file.read_text())
    access.file.write_text(json.dumps(kept | {"until": time.time() - 1}))


# Client credentials


def test_client_credentials(authority, notes):
    assert call(by_client(notes)).content == "added a"
    assert call(by_client(notes, secret_in="body")).content == "added a"
    assert authority.grants == ["client_credentials"] * 1  # the second took the token that the first had kept


def test_a_token_endpoint_may_be_stated(authority, notes):
    stated = {"client_id": CLIENT, "client_secret": SECRET, "token_url": f"{authority.base}/token", "scopes": ["read"]}
    authority.audience = notes.url
    assert call(ServerSpec("notes", url=notes.url, auth=stated)).content == "added a"


def test_a_wrong_secret_is_one_sentence(notes):
    error = refusal(by_client(notes, client_secret="not-the-secret-4711"))
    assert error.final and str(error) == (
        "server 'notes' cannot be used without a token, and none was issued (invalid_client: unknown client): check "
        "auth in its entry."
    )


def test_the_secret_goes_to_no_server_that_another_names(authority, notes):
    error = refusal(by_client(notes, issuer=""))
    assert error.final and f"names another authorization server, {authority.base}" in str(error)
    assert not authority.grants


def test_the_scopes_of_the_entry_are_asked_for(authority, notes):
    assert call(by_client(notes, scopes=["read", "write"])).content == "added a"
    assert [token.scopes for token in authority.access.values()] == [["read", "write"]]


# A login


def test_a_login_registers_a_client_and_keeps_a_token(authority, notes):
    spec = by_login(notes)
    error = refusal(spec)
    assert error.final and str(error) == ("server 'notes' needs a login: run `mcp-grpo login notes --servers FILE`.")
    assert not notes.seen and not authority.grants
    said = log_in_at(spec)
    file = Access(spec).file
    assert str(file) in said and "renews itself" in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert call(spec).content == "added a" and authority.grants == ["authorization_code"]
    assert forget_login(spec) == "the token for server 'notes' is removed." and not list(file.parent.iterdir())
    assert forget_login(spec) == "there is no token for server 'notes'."
    assert "needs a login" in str(refusal(spec))


def test_only_the_right_state_is_taken(authority, notes):
    pages = []

    def strange(url: str) -> None:
        "Another program of this machine is faster than the browser."
        back = httpx2.URL(url).params["redirect_uri"]
        pages.append(httpx2.get(back, params={"code": "code-of-a-stranger", "state": "guessed"}).status_code)
        pages.append(httpx2.get(back.replace("/callback", "/")).status_code)
        pages.append(browse(url).status_code)

    run_sync(log_in, by_login(notes), strange)
    assert pages == [200, 404, 200] and "code-of-a-stranger" not in authority.told


def test_another_challenge_is_refused(authority, notes):
    "A code that was asked for with another verifier is worth nothing."
    with pytest.raises(AccessError, match="invalid_grant: incorrect code_verifier"):
        log_in_at(by_login(notes), code_challenge="A" * 43)
    assert not authority.access


def test_a_login_that_is_denied_is_one_sentence(authority, notes):
    authority.denies = True
    with pytest.raises(AccessError) as caught:
        log_in_at(by_login(notes))
    assert str(caught.value) == "server 'notes' has refused the login (access_denied: the user said no)."


def test_the_issuer_of_a_login_may_be_stated(authority, notes):
    spec = ServerSpec("notes", url=notes.url, auth={"login": True, "issuer": "https://other.example"})
    with pytest.raises(AccessError, match="and not to the issuer in auth"):
        log_in_at(spec)


def test_a_server_that_needs_no_login_says_so():
    async def ask():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        await log_in(ServerSpec("open", url=url, auth="login"), print)

    with pytest.raises(AccessError, match="asks for no login: without a token it answers with status 400"):
        run_sync(ask)


# The end of a token


def test_an_expired_token_is_renewed(authority, notes):
    spec = by_login(notes)
    log_in_at(spec)
    expire(spec)
    assert call(spec).content == "added a" and authority.grants == ["authorization_code", "refresh_token"]
    assert call(spec).content == "added a" and len(authority.grants) == 2


def test_a_token_that_only_the_server_knows_to_be_over_is_renewed(authority, notes):
    spec = by_login(notes)
    log_in_at(spec)
    authority.access.clear()
    assert call(spec).content == "added a" and authority.grants == ["authorization_code", "refresh_token"]


def test_a_token_that_ends_within_a_session_is_renewed(authority, notes):
    spec = by_login(notes)
    authority.life = 2
    log_in_at(spec)

    async def ask():
        async with Session(spec) as session:
            texts = []
            for _ in range(6):
                texts.append((await session.call("add", {"text": "a"})).content)
                await anyio.sleep(0.5)
            return texts

    assert run_sync(ask) == ["added a"] * 6
    assert "refresh_token" in authority.grants


def test_a_revoked_login_is_one_sentence(authority, notes):
    spec = by_login(notes)
    log_in_at(spec)
    run_sync(authority.revoke_token, None)
    error = refusal(spec)
    assert error.final and str(error) == (
        "server 'notes' needs a new login, because the old one has ended (invalid_grant: refresh token does not "
        "exist): run `mcp-grpo login notes --servers FILE`."
    )


def test_a_token_without_a_refresh_token_ends_in_one_sentence(authority, notes):
    spec = by_login(notes)
    authority.refreshes = False
    assert "cannot renew itself" in log_in_at(spec)
    expire(spec)
    assert "has expired or was revoked, and came without a refresh token: run `mcp-grpo login" in str(refusal(spec))


@pytest.mark.parametrize("entry", [by_client, by_login])
def test_a_token_for_another_audience_is_refused(authority, notes, entry):
    authority.audience, spec = "https://other.example/mcp", entry(notes)
    if spec.auth.login:
        with pytest.raises(AccessError, match="another audience"):
            log_in_at(spec)
    error = refusal(spec)
    assert error.final and "refuses the token that was issued for it (invalid_token" in str(error)
    assert "another audience" in str(error) and len(authority.grants) <= 2


def test_a_scope_that_is_missing_is_named(authority, notes):
    authority.scopes = []
    error = refusal(by_client(notes))
    assert error.final and "asks for more scopes (insufficient_scope: Required scope: read): add them to" in str(error)


@pytest.mark.parametrize("entry", [by_client, by_login])
def test_an_authorization_server_that_is_down_is_a_fault_that_may_pass(authority, notes, entry):
    spec = entry(notes)
    if spec.auth.login:
        log_in_at(spec)
        expire(spec)
    authority.stop()
    error = refusal(spec)
    assert not error.final and "and 127.0.0.1 cannot be reached (ConnectError): try again later." in str(error)
    authority.start()
    authority.broken = 503
    error = refusal(spec)
    assert not error.final and "none was issued (down): try again later." in str(error)
    authority.broken = 0
    assert call(spec).content == "added a"


# Pools, episodes, processes


TASK = {
    "prompt": [{"role": "user", "content": "Add a note."}],
    "reward_spec": {"ground_truth": {"task_id": "t", "success": {"kind": "answer", "values": ["1"]}}},
    "extra_info": {"all_tools_of": ["notes"]},
}


def test_a_revoked_login_ends_a_run_and_no_episode_is_scored(authority, notes):
    from mcp_grpo.env.action import Action, Call

    spec, task = by_login(notes), Task.from_row(TASK)
    log_in_at(spec)
    add = Action(calls=[Call("add", {"text": "a"})])

    async def play(pool):
        async with Episode(task, pool) as episode:
            await episode.step(add)
            run_sync_revoke()
            await episode.step(add)
            outcome = await episode.finish()
        with pytest.raises(SessionError, match="needs a new login"):
            async with Episode(task, pool) as later:
                await later.step(add)
        return outcome

    def run_sync_revoke():
        authority.access.clear()
        authority.refresh.clear()

    with Pool({"notes": spec}) as pool:
        outcome = run_sync(play, pool)
    assert outcome.end == "aborted" and outcome.reward is None, outcome


def test_a_server_that_is_restarted_is_used_again(authority, notes):
    spec = by_login(notes, idempotent=["add"])
    log_in_at(spec)

    async def work(pool):
        texts = []
        for turn in range(4):
            if turn == 2:
                await anyio.to_thread.run_sync(notes.stop)
                notes.start()
            async with await pool.lease(["notes"]) as lease:
                texts.append((await lease.call("notes", "add", {"text": "a"})).content)
        return texts

    with Pool({"notes": spec}) as pool:
        assert run_sync(work, pool) == ["added a"] * 4
    assert authority.grants == ["authorization_code"]


def test_a_tape_is_replayed_without_a_token_and_a_pin_holds(authority, notes, tmp_path):
    spec = by_login(notes)
    log_in_at(spec)

    async def ask(pool):
        async with await pool.lease(["notes"]) as lease:
            return (await lease.call("notes", "add", {"text": "a"})).content, pool.digests()["notes"]

    with Pool({"notes": spec}, Tape(tmp_path / "tape", "auto"), owns_tape=True) as pool:
        text, pin = run_sync(ask, pool)
    pinned = spec.model_copy(update={"pin": pin})
    with Pool({"notes": pinned}) as pool:
        assert run_sync(ask, pool) == (text, pin)
    with Pool({"notes": spec.model_copy(update={"pin": "0" * 64})}) as pool, pytest.raises(SessionError, match="pin"):
        run_sync(ask, pool)
    forget_login(spec)
    before = len(notes.seen)
    with Pool({"notes": pinned}, Tape(tmp_path / "tape", "replay"), owns_tape=True) as pool:
        assert run_sync(ask, pool) == ("added a", pin)
    assert len(notes.seen) == before


def test_many_sessions_renew_a_token_once(authority, notes):
    spec = by_login(notes)
    log_in_at(spec)
    expire(spec)
    authority.delay = 0.3

    async def work(pool):
        async def one():
            async with await pool.lease(["notes"]) as lease:
                results.append(await lease.call("notes", "add", {"text": "a"}))

        results = []
        async with anyio.create_task_group() as group:
            for _ in range(24):
                group.start_soon(one)
        return results

    with Pool({"notes": spec}) as pool:
        assert not [result.content for result in run_sync(work, pool) if result.fault]
    assert authority.grants == ["authorization_code", "refresh_token"]


OTHER = """
import sys
from mcp_grpo.aio import run_sync
from mcp_grpo.client.session import Session
from mcp_grpo.client.spec import from_mcp_servers
async def ask():
    async with Session(from_mcp_servers(sys.argv[1])["notes"]) as session:
        return (await session.call("add", {"text": "a"})).content
print(run_sync(ask))
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def test_processes_share_a_token_file(authority, notes, tmp_path):
    (file := tmp_path / "mcp.json").write_text(
        json.dumps({"mcpServers": {"notes": {"url": notes.url, "auth": "login"}}})
    )
    spec = by_login(notes)
    log_in_at(spec)
    expire(spec)
    authority.delay = 1.0
    started = [
        subprocess.Popen(
            [sys.executable, "-c", OTHER, file], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    told = [process.communicate(timeout=600) for process in started]
    assert [out.decode().strip() for out, _ in told] == ["added a"] * 3, told
    assert authority.grants == ["authorization_code", "refresh_token"]


def test_the_old_transport_has_tokens_too(authority):
    server = Notes(authority, sse=True).start()
    spec = ServerSpec("notes", url=server.url, sse=True, auth="login", start_timeout=10.0)
    assert refusal(spec).final
    log_in_at(spec)
    assert call(spec).content == "added a"

    async def ask():
        async with Session(spec) as session:
            await session.call("add", {"text": "a"})
            authority.access.clear()
            authority.refresh.clear()
            return await session.call("add", {"text": "a"})

    result = run_sync(ask)
    assert result.fault == "transport" and "needs a new login" in result.content
    error = refusal(spec)
    assert error.final and "needs a new login" in str(error)
    server.stop()


def test_a_call_that_is_cancelled_does_not_lose_the_new_token(authority, notes):
    spec = by_login(notes)
    log_in_at(spec)
    expire(spec)
    authority.delay = 1.0

    async def ask():
        with anyio.move_on_after(0.4):
            async with Session(spec):
                pass
        await anyio.sleep(1.5)

    run_sync(ask)
    authority.delay = 0.0
    assert call(spec).content == "added a" and authority.grants == ["authorization_code", "refresh_token"]


def test_calls_of_a_session_run_at_once(authority, notes):
    "The SDK's own provider would let one wait for the other."

    async def ask():
        async with Session(by_client(notes)) as session:
            began = time.monotonic()
            async with anyio.create_task_group() as group:
                for _ in range(8):
                    group.start_soon(session.call, "slow", {"seconds": 1})
            return time.monotonic() - began

    assert run_sync(ask) < 5


# Nothing is told


def test_a_redirect_carries_no_token(authority, notes):
    heads = []

    async def ask():
        async def away(reader, writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

        async def here(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            port = elsewhere.sockets[0].getsockname()[1]
            told = b"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:%d/mcp\r\nContent-Length: 0\r\n\r\n" % port
            asks = b'HTTP/1.1 401 No\r\nWWW-Authenticate: Bearer realm="x"\r\nContent-Length: 0\r\n\r\n'
            writer.write(told if b"uthorization: Bearer" in head else asks)
            heads_here.append(head)

        elsewhere = await asyncio.start_server(away, "127.0.0.1", 0)
        listening = await asyncio.start_server(here, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        auth = {"client_id": CLIENT, "client_secret": SECRET, "token_url": f"{authority.base}/token"}
        with pytest.raises(SessionError):
            async with Session(ServerSpec("moved", url=url, auth=auth, start_timeout=5.0)):
                pass
        access = Access(ServerSpec("moved", url=url, auth=auth))
        request = httpx2.Request("POST", f"http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/mcp", json={})
        await access.send(request, httpx2.AsyncHTTPTransport().handle_async_request)

    heads_here = []
    run_sync(ask)
    assert any(b"Bearer access-" in head for head in heads_here)
    assert heads and not any(b"uthorization" in head for head in heads)


def test_a_remote_server_may_not_name_this_machine():
    from mcp_grpo.client.spec import is_safe_address

    assert is_safe_address("http://127.0.0.1:1/token") and is_safe_address("https://a.example", "https://b.example")
    for url in ("http://a.example/token", "http://127.0.0.1/token", "http://169.254.169.254/", "file:///etc/passwd"):
        assert not is_safe_address(url, "https://b.example"), url
    with pytest.raises(SpecError, match="auth needs a url with https://"):
        ServerSpec("x", url="http://a.example/mcp", auth="login")


def test_nothing_secret_is_written(authority, notes, tmp_path):
    "Log, tape, results, errors and reprs, of a login, a renewal and a refusal."
    (log := logging.Handler(logging.DEBUG)).setFormatter(logging.Formatter("%(name)s %(message)s"))
    written = []
    log.emit = lambda record: written.append(log.format(record))
    loud = [logging.getLogger(name) for name in ("", "mcp", "mcp.client.auth", "mcp_grpo", "httpx2", "asyncio")]
    levels = [logger.level for logger in loud]
    logging.getLogger().addHandler(log)
    try:
        for logger in loud:
            logger.setLevel(logging.DEBUG)
        for name in ("httpcore2.http11", "httpcore2.connection"):
            logging.getLogger(name).setLevel(logging.DEBUG)
        for name in ("mcp.server", "uvicorn", "sse_starlette"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # of the servers, which know the secrets
        spec, client = by_login(notes), by_client(notes)
        run_sync(log_in, spec, browse_elsewhere)
        (tmp_path / "tape").mkdir()
        tape = Tape(tmp_path / "tape/tape.db", "auto")

        async def ask(pool):
            async with await pool.lease(["notes", "client"]) as lease:
                for name in ("notes", "client"):
                    written.append(repr(await lease.call(name, "token", {})))
                authority.access.clear()  # both are renewed within the session
                for name in ("notes", "client"):
                    written.append(repr(await lease.call(name, "token", {})))

        specs = {"notes": spec, "client": client.model_copy(update={"name": "client"})}
        with Pool(specs, tape, owns_tape=True) as pool:
            run_sync(ask, pool)
        run_sync(authority.revoke_token, None)
        told = authority.secrets | {token for token in notes.seen}
        for entry in (spec, by_client(notes, client_secret="wrong-s3cret-4711-wrong")):
            try:
                call(entry)
            except SessionError as error:
                written += [str(error), repr(error)]
        written += [repr(spec), str(client), repr(Access(spec).kept()), repr(Access(client).kept())]
        written += [path.read_bytes().decode("latin-1") for path in (tmp_path / "tape").iterdir()]
        with pytest.raises(SpecError) as caught:
            ServerSpec("x", url=notes.url, auth={"client_id": "a", "client_secret": {"it": SECRET}})
        written.append(str(caught.value))
    finally:
        logging.getLogger().removeHandler(log)
        for logger, level in zip(loud, levels):
            logger.setLevel(level)
    text = "\n".join(written)
    assert text.count("you sent [redacted]") >= 4 and len(told) > 8 and "httpcore2" in text
    found = [secret for secret in told | {"wrong-s3cret-4711-wrong"} if secret in text]
    assert not found, [line[:300] for line in written if any(secret in line for secret in found)]


def said(*words, folder: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mcp_grpo.cli", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_login_says_what_is_wrong(tmp_path):
    from mcp_grpo.cli import app

    entries = {
        "wiki": {"url": "https://wiki.example/mcp"},
        "mail": {"url": "http://127.0.0.1:9/mcp", "auth": "login"},
        "shop": {"url": "https://shop.example/mcp", "auth": {"client_id": "a", "client_secret": "sesame-4711"}},
    }
    (file := tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))

    def told(*words: str) -> str:
        done = CliRunner().invoke(app, ["login", *words, "--servers", str(file)])
        assert done.exit_code == 1
        return done.stderr.strip()

    assert told("wiki").startswith("server 'wiki' asks for no login: write")
    assert told("shop") == "server 'shop' needs no login, because its entry holds client credentials."
    assert "127.0.0.1 cannot be reached (ConnectError): try again later." in told("mail")
    assert "names no server 'wikis'; there are wiki, mail, shop; did you mean wiki?" in told("wikis")


def test_the_commands(authority, notes, tmp_path):
    entries = {"notes": {"url": notes.url, "auth": "login", "isolation": "shared"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    at = ("notes", "--servers", "mcp.json")
    first = said("call", *at, folder=tmp_path)
    assert first.returncode == 1 and "Traceback" not in first.stderr
    assert first.stderr.strip() == "server 'notes' needs a login: run `mcp-grpo login notes --servers FILE`."

    login = subprocess.Popen(
        [sys.executable, "-u", "-m", "mcp_grpo.cli", "login", *at, "--no-browser"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = login.stdout.readline().strip().removeprefix("log in at this address: ")
    assert browse(address).text.startswith("mcp-grpo has got the answer")
    last = login.communicate(timeout=60)[0]
    assert login.returncode == 0 and last.startswith("logged in at server 'notes'; the token is in "), last

    used = said("call", "notes", "add", '{"text": "a"}', "--servers", "mcp.json", folder=tmp_path)
    assert used.stdout.strip() == "added a", used
    run_sync(authority.revoke_token, None)
    doctor = said("doctor", "--servers", "mcp.json", folder=tmp_path)
    told = " ".join(re.sub("[│|]", " ", doctor.stdout).split())
    assert doctor.returncode == 1 and "needs a new login, because the old one has ended (invalid_grant" in told, told
    everything = "".join(part for done in (doctor, first, used) for part in (done.stdout, done.stderr)) + last
    assert not [secret for secret in authority.secrets | set(notes.seen) if secret in everything]
    assert said("login", *at, "--forget", folder=tmp_path).stdout.strip() == "the token for server 'notes' is removed."
    assert "names no server 'note'" in said("login", "note", "--servers", "mcp.json", folder=tmp_path).stderr
