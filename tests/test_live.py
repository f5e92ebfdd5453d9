"""The live backends over a real socket, against APIs of our own that speak and fail as the real ones do; what arrives
is what a session of ours says."""

import contextlib, importlib, json, subprocess, sys

import anyio
import jsonschema
import pytest
from conftest import ROOT, needs

sys.path.insert(0, str(ROOT / "tests/servers"))
import fake_apis
from fake_apis import KEY, serving

from mcp_grpo.client import stdio
from mcp_grpo.client.session import Session, SessionError
from mcp_grpo.client.spec import EMBEDDED, ServerSpec, embedded_specs
from mcp_grpo.servers.live import Failed

# server: its client's package, the variable with the key, a tool, its arguments about something, what the model hears
# of a 404 (nothing: it is a fault)
SERVICES = {
    "polygon": ("massive", "POLYGON_API_KEY", "get_last_trade", lambda x: {"ticker": x}, "unknown ticker E404"),
    "fmp": ("httpx", "FMP_API_KEY", "fmp_get_quote", lambda x: {"symbol": x}, "unknown symbol E404"),
    "tavily": ("tavily", "TAVILY_API_KEY", "tavily_search", lambda x: {"query": x}, ""),
    "slack": ("slack_sdk", "SLACK_BOT_TOKEN", "slack_get_channel_history", lambda x: {"channel_id": f"C{x}"}, ""),
}
FAULTS = {
    "E401": "transport",
    "E403": "transport",
    "E500": "transport",
    "ECUT": "transport",
    "EHTML": "transport",
    "ESHAPE": "transport",
    "EGONE": "transport",
    "ESLOW": "timeout",
    "EDRIP": "timeout",
    "E429": "rate_limit",
}  # what the API does: what arrives
SLOW = ("ESLOW", "EDRIP")
TRIES = {  # every tool, and the result
    "polygon": [
        ("get_last_trade", {"ticker": "AAPL"}, {"ticker": "AAPL", "price": 129.8473}),
        ("get_previous_close_agg", {"ticker": "AAPL"}, {"ticker": "AAPL", "close": 130.15, "volume": 70790813}),
        (
            "get_aggs",
            {"ticker": "AAPL", "from_": "2023-01-09", "to": "2023-01-10", "limit": 1},
            {
                "ticker": "AAPL",
                "results": [{"t": "2023-01-09", "o": 130.465, "h": 133.41, "l": 129.89, "c": 130.15, "v": 70790813}],
            },
        ),
        ("get_aggs", {"ticker": "AAPL", "from_": "1999-01-04", "to": "1999-01-05"}, {"ticker": "AAPL", "results": []}),
        (
            "get_ticker_details",
            {"ticker": "AAPL"},
            {
                "ticker": "AAPL",
                "name": "Apple Inc.",
                "sector": "ELECTRONIC COMPUTERS",
                "city": "CUPERTINO",
                "employees": 154000,
            },
        ),
        (
            "get_ticker_details",
            {"ticker": "SPY"},
            {"ticker": "SPY", "name": "SPDR S&P 500 ETF Trust", "sector": None, "city": None, "employees": None},
        ),
        ("list_ticker_news", {"ticker": "AAPL"}, {"results": [{"published": "2024-06-24", "title": "Apple opens"}]}),
        ("get_market_status", {}, {"market": "closed", "last_trading_day": "2023-01-09"}),
        ("get_last_trade", {"ticker": "NONE"}, "unknown ticker NONE"),
        ("get_previous_close_agg", {"ticker": "NONE"}, "unknown ticker NONE"),
        ("get_aggs", {"ticker": "NONE", "from_": "2023-01-09", "to": "2023-01-10"}, "unknown ticker NONE"),
        (
            "get_aggs",
            {"ticker": "AAPL", "from_": "January", "to": "2023-01-10"},
            "from_ and to should be dates, YYYY-MM-DD",
        ),
        ("list_ticker_news", {"ticker": "NONE"}, "unknown ticker NONE"),
        ("get_last_trade", {"ticker": "E400"}, "The request with key *** is not possible."),
    ],
    "fmp": [
        ("fmp_get_quote", {"symbol": "AAPL"}, {"symbol": "AAPL", "price": 268.47, "change": -1.3, "volume": 45140079}),
        (
            "fmp_get_company_profile",
            {"symbol": "AAPL"},
            {
                "symbol": "AAPL",
                "companyName": "Apple Inc.",
                "sector": "Technology",
                "ceo": "Timothy D. Cook",
                "city": "Cupertino",
            },
        ),
        (
            "fmp_get_income_statement",
            {"symbol": "AAPL"},
            {
                "symbol": "AAPL",
                "statements": [
                    {"year": 2024, "revenue": 391035000000, "costs": 267819000000, "netIncome": 93736000000}
                ],
            },
        ),
        (
            "fmp_get_income_statement",
            {"symbol": "AAPL", "period": "quarter"},
            {
                "symbol": "AAPL",
                "statements": [
                    {
                        "year": 2025,
                        "quarter": 1,
                        "revenue": 124300000000,
                        "costs": 81468000000,
                        "netIncome": 36330000000,
                    }
                ],
            },
        ),
        ("fmp_search_ticker", {"query": "AAPL"}, {"results": [{"symbol": "AAPL", "name": "Apple Inc."}]}),
        ("fmp_search_ticker", {"query": "Apple Inc"}, {"results": [{"symbol": "AAPL", "name": "Apple Inc."}]}),
        ("fmp_get_market_gainers", {}, {"results": [{"symbol": "LUMO", "change": 29.13}] * 3}),
        ("fmp_get_market_losers", {}, {"results": [{"symbol": "LUMO", "change": 29.13}] * 3}),
        ("fmp_get_stock_news", {"symbol": "AAPL"}, {"results": [{"date": "2025-02-03", "title": "Apple opens"}]}),
        ("fmp_get_quote", {"symbol": "NONE"}, "unknown symbol NONE"),
        ("fmp_get_company_profile", {"symbol": "NONE"}, "unknown symbol NONE"),
        ("fmp_get_income_statement", {"symbol": "NONE"}, "unknown symbol NONE"),
        ("fmp_get_stock_news", {"symbol": "NONE"}, "unknown symbol NONE"),
        ("fmp_search_ticker", {"query": "NONE"}, "nothing found for NONE"),
        ("fmp_get_quote", {"symbol": "E400"}, "The request with key *** is not possible."),
    ],
    "tavily": [
        (
            "tavily_search",
            {"query": "apple"},
            {
                "results": [
                    {
                        "title": "Apple",
                        "url": "https://apple.example/",
                        "content": "Apple makes computers.",
                        "score": 0.91,
                    }
                ]
            },
        ),
        (
            "tavily_search",
            {
                "query": "apple",
                "search_depth": "advanced",
                "topic": "news",
                "time_range": "week",
                "include_domains": ["apple.example"],
            },
            {
                "results": [
                    {
                        "title": "Apple",
                        "url": "https://apple.example/",
                        "content": "Apple makes computers.",
                        "score": 0.91,
                        "published_date": "2025-02-03",
                        "raw_content": "All of it.",
                    }
                ]
            },
        ),
        ("tavily_search", {"query": "NONE"}, {"results": []}),
        (
            "tavily_extract",
            {"urls": ["https://apple.example/", "https://none.example/"]},
            {
                "results": [{"url": "https://apple.example/", "raw_content": "All of it."}],
                "failed_results": [{"url": "https://none.example/", "error": "Failed to fetch url"}],
            },
        ),
        ("tavily_extract", {"urls": ["https://none.example/"]}, "page not found: https://none.example/"),
        ("tavily_search", {"query": "?"}, "query should hold a word"),
        ("tavily_search", {"query": "E400"}, "The request with key *** is not possible."),
    ],
    "slack": [
        (
            "slack_list_channels",
            {"limit": 1},
            {
                "ok": True,
                "channels": [{"id": "C1", "name": "name-c1", "is_member": True}],
                "response_metadata": {"next_cursor": "at:1"},
            },
        ),
        ("slack_list_channels", {"cursor": "at:99"}, "invalid_cursor"),
        (
            "slack_post_message",
            {"channel_id": "C1", "text": "a < b <!channel>"},
            {"ok": True, "channel": "C1", "ts": "1700000009.000100"},
        ),
        (
            "slack_post_message",
            {"channel_id": "#name-c1", "text": "hello"},
            {"ok": True, "channel": "C1", "ts": "1700000009.000100"},
        ),
        (
            "slack_reply_to_thread",
            {"channel_id": "C1", "thread_ts": "1700000002.000100", "text": "yes"},
            {"ok": True, "channel": "C1", "ts": "1700000009.000100"},
        ),
        (
            "slack_get_channel_history",
            {"channel_id": "C1"},
            {
                "ok": True,
                "messages": [{"ts": "1700000002.000100", "user": "U1", "text": "a < b", "reactions": ["bird"]}],
            },
        ),
        (
            "slack_get_thread_replies",
            {"channel_id": "C1", "thread_ts": "1700000002.000100"},
            {
                "ok": True,
                "messages": [
                    {"ts": "1700000002.000100", "user": "U1", "text": "a < b", "reactions": ["bird"]},
                    {"ts": "1700000003.000100", "user": "B1", "text": "yes", "thread_ts": "1700000002.000100"},
                ],
            },
        ),
        (
            "slack_add_reaction",
            {"channel_id": "C1", "timestamp": "1700000002.000100", "reaction": ":bird:"},
            {"ok": True},
        ),
        *[
            (
                "slack_get_users",
                cursor,
                {"ok": True, "members": [{"id": "U1", "name": "ada", "real_name": "Ada Lovelace", "title": "Analyst"}]}
                | more,
            )
            for cursor, more in (({}, {"response_metadata": {"next_cursor": "bmV4dA=="}}), ({"cursor": "bmV4dA=="}, {}))
        ],
        (
            "slack_get_user_profile",
            {"user_id": "U1"},
            {"ok": True, "profile": {"id": "U1", "name": "ada", "real_name": "Ada Lovelace", "title": "Analyst"}},
        ),
        ("slack_get_user_profile", {"user_id": "U7"}, "user_not_found"),
        (
            "slack_post_message",
            {"channel_id": "C999", "text": "to a channel that is not on the list"},
            "channel_not_found",
        ),
        ("slack_post_message", {"channel_id": "C1", "text": " "}, "no_text"),
        ("slack_post_message", {"channel_id": "CXnot_in_channel", "text": "hello"}, "not_in_channel"),
        ("slack_get_channel_history", {"channel_id": "CE400"}, "the service does not accept these arguments"),
    ],
}
CHANNELS = [
    "C1",
    "CXnot_in_channel",
    "CXinvalid_auth",
    "CXfatal_error",
    *(f"C{failure}" for failure in [*FAULTS, "E400", "E404"]),
]
REAL_SLACK = (
    "import json, sys\nfrom mcp_grpo.servers.slack import "
    "LiveSlack\nLiveSlack(**json.loads(sys.argv[1])).server().run('stdio')"
)


def slack_command(url: str, **more) -> list:
    "The real Slack's class in a process of its own."
    return [
        "-c",
        REAL_SLACK,
        json.dumps({"teams": ["T1"], "channels": CHANNELS, "live": True, "base_url": url, **more}),
    ]


@contextlib.contextmanager
def live(name: str, monkeypatch, timeout: float = 15.0):
    "The spec of a live server, and the API that it asks."
    package, variable = SERVICES[name][:2]
    needs(package)
    monkeypatch.setenv(variable, KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(getattr(fake_apis, name)) as api:
        here = {
            "server": f"mcp_grpo.servers.{name}:make_server",
            "options": {"live": True, "base_url": api.url, "timeout": timeout},
            "isolation": "shared",
        }
        apart = {
            "command": sys.executable,
            "args": slack_command(api.url, timeout=timeout),
            "env": {variable: KEY, "PYTHONPATH": str(ROOT)},
            "isolation": "shared",
        }
        if name == "slack":  # this process has played episodes; a test below shows what that prevents
            monkeypatch.setattr(stdio, "_forbidden", False)
            monkeypatch.delenv(stdio.ROLLOUT, raising=False)
        yield ServerSpec(name, start_timeout=60.0, **(apart if name == "slack" else here)), api


def calls(spec: ServerSpec, tries: list):
    """The tools as they are listed, each call's result, and how long the session pauses afterwards. The session itself
    redacts nothing."""

    async def talk():
        with anyio.fail_after(120):
            async with Session(spec, secrets=[]) as session:
                results = [await session.call(tool, arguments) for tool, arguments in tries]
                return session.tools, results, session.pause.left

    return anyio.run(talk)


@pytest.mark.parametrize("name", SERVICES)
def test_answers_have_the_shape_of_the_embedded_servers(name, monkeypatch):
    with live(name, monkeypatch) as (spec, api):
        tools, results, _ = calls(spec, [(tool, arguments) for tool, arguments, _ in TRIES[name]])
    offline = calls(embedded_specs([name])[name], [])[0]
    for (tool, arguments, expected), found in zip(TRIES[name], results):
        said = found.content if isinstance(expected, str) else found.structured
        assert (said, found.is_error, found.fault) == (expected, isinstance(expected, str), None), (
            tool,
            arguments,
            found,
        )
        if not found.is_error:
            assert json.loads(found.content) == found.structured
            if schema := offline[tool].output_schema:
                jsonschema.validate(found.structured, schema)
        assert KEY not in str(found)
    assert {n: t.input_schema for n, t in tools.items()} == {n: t.input_schema for n, t in offline.items()}
    assert set(tools) == {tool for tool, *_ in TRIES[name]} and not any(
        "ynthetic" in t.description for t in tools.values()
    )


@pytest.mark.parametrize("name", SERVICES)
def test_each_failure_arrives_as_whose_fault_it_is(name, monkeypatch):
    _, variable, tool, about, missing = SERVICES[name]
    for failures in ([f for f in FAULTS if f not in SLOW], SLOW):  # the one that asks for a pause is the last
        with live(name, monkeypatch, timeout=1.5 if failures is SLOW else 15.0) as (spec, _):
            _, results, shut = calls(spec, [(tool, about(failure)) for failure in failures])
        for failure, found in zip(failures, results):
            assert found.fault == FAULTS[failure], (failure, found)
            assert KEY not in str(found)
            if failure in ("E401", "E403"):
                assert f"refused the key in {variable}" in found.content
            if failure in SLOW:
                assert found.seconds < fake_apis.SLOW
        assert 0 < shut <= 50 if failures[-1] == "E429" else shut == 0
    with live(name, monkeypatch) as (spec, _):
        result = calls(spec, [(tool, about("E404"))])[1][0]
    if missing:
        assert (result.content, result.is_error, result.fault) == (missing, True, None)
    else:
        assert result.fault == "transport" and "see whether its base_url is right" in result.content


@pytest.mark.parametrize("name", ["polygon", "fmp", "tavily"])
def test_a_key_that_is_refused_is_a_fault_and_stays_hidden(name, monkeypatch):
    _, variable, tool, about, _ = SERVICES[name]
    with live(name, monkeypatch) as (spec, _):
        monkeypatch.setenv(variable, "sk-another-key-that-is-wrong")
        found = calls(spec, [(tool, about("AAPL"))])[1][0]
    assert (
        found.fault == "transport"
        and f"refused the key in {variable}" in found.content
        and "sk-another" not in str(found)
    )


@pytest.mark.parametrize("name", ["polygon", "fmp", "tavily"])
def test_no_key_or_no_package_is_one_sentence(name, monkeypatch, tmp_path):
    package, variable = SERVICES[name][:2]
    make_server = importlib.import_module(f"mcp_grpo.servers.{name}").make_server
    monkeypatch.chdir(tmp_path)  # where no .env is
    monkeypatch.setenv(variable, "")  # put back at the end, whatever is read
    monkeypatch.delenv(variable)
    with pytest.raises(Failed, match=f"^{variable} is not set: .*$"):
        make_server(live=True)
    (tmp_path / ".env").write_text(f"{variable}={KEY}\n")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Failed, match=f"needs the package {package}: pip install"):
        make_server(live=True)


def test_no_server_loads_a_client_until_it_is_asked_for():
    clients = [package for package, *_ in SERVICES.values()] + ["requests"]
    program = (
        "import sys\nfrom mcp_grpo.servers import polygon, fmp, tavily, slack\nfor s in polygon, fmp, tavily, "
        "slack: s.make_server()\n"
        f"print([c for c in {clients} if c in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True, cwd=ROOT).strip() == "[]"


def test_what_would_lead_to_another_path_is_not_asked_for(monkeypatch):
    odd = [
        "../../v3/reference/tickers/AAPL",
        "..",
        "AAPL?limit=1",
        "AAPL/prev",
        "AAPL#",
        "%2e%2e",
        "",
        "A" * 500,
        "AAPL\n",
        "日本",
    ]
    with live("polygon", monkeypatch) as (spec, api):
        results = calls(spec, [("get_last_trade", {"ticker": t}) for t in odd])[1]
        assert api.requests == [] and all(r.is_error and not r.fault for r in results)


def test_a_slow_call_does_not_hold_up_others(monkeypatch):
    async def both(spec):
        done = []
        async with Session(spec) as session, anyio.create_task_group() as group:

            async def call(ticker):
                await session.call("get_last_trade", {"ticker": ticker})
                done.append(ticker)

            group.start_soon(call, "ESLOW")
            await anyio.sleep(0.1)
            group.start_soon(call, "AAPL")
        return done

    with live("polygon", monkeypatch, timeout=8.0) as (spec, _):
        assert anyio.run(both, spec) == ["AAPL", "ESLOW"]


# ---- Slack


def test_slacks_codes_for_itself_are_faults(monkeypatch):
    with live("slack", monkeypatch) as (spec, api):
        results = calls(
            spec, [("slack_get_channel_history", {"channel_id": c}) for c in ("CXinvalid_auth", "CXfatal_error")]
        )[1]
        assert [(r.fault, r.is_error) for r in results] == [("transport", False)] * 2


def test_text_rings_for_nobody_and_other_channels_are_not_touched(monkeypatch):
    tries = [
        ("slack_post_message", {"channel_id": c, "text": "a < b <!channel>"}) for c in ("C1", "C999", "#elsewhere")
    ]
    with live("slack", monkeypatch) as (spec, api):
        calls(spec, tries)
        assert [ask["text"] for path, ask in api.requests if path.endswith("postMessage")] == [
            "a &lt; b &lt;!channel&gt;"
        ]
        assert {ask["channel"] for _, ask in api.requests if "channel" in ask} <= set(CHANNELS)


@pytest.mark.parametrize(
    "more, says",
    [
        ({"teams": ["T2"]}, "belongs to team T1, which is not one of T2"),
        ({"live": False}, "set live"),
        ({"channels": []}, "give the ids of the teams and channels"),
        ({"teams": []}, "give the ids of the teams and channels"),
    ],
)
def test_slack_is_real_only_where_all_of_it_is_said(more, says):
    needs("slack_sdk")
    with serving(fake_apis.slack) as api:
        done = subprocess.run(
            [sys.executable, *slack_command(api.url, **more)],
            env={"SLACK_BOT_TOKEN": KEY},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode and says in done.stderr.splitlines()[-1] and KEY not in done.stderr


def test_no_training_path_leads_to_the_real_slack(monkeypatch):
    from mcp_grpo.servers import slack

    for transport in "memory", "stdio":
        for spec in embedded_specs(list(EMBEDDED), transport).values():
            assert (
                "live" not in spec.options
                and not any("live" in word for word in spec.args)
                and not spec.pass_env
                and set(spec.env) <= {"PYTHONPATH"}
            )
    with pytest.raises(TypeError):
        Session(ServerSpec("slack", server="mcp_grpo.servers.slack:make_server", options={"live": True}))
    monkeypatch.setenv("SLACK_BOT_TOKEN", KEY)
    importlib.import_module("mcp_grpo.env.episode")
    with pytest.raises(Failed, match="process that trains or plays episodes"):
        slack.LiveSlack(["T1"], ["C1"], live=True)


def test_a_process_that_runs_episodes_cannot_start_the_real_slack(monkeypatch):
    importlib.import_module("mcp_grpo.env.episode")
    with live("slack", monkeypatch) as (spec, api):
        monkeypatch.undo()
        with pytest.raises(SessionError, match="process that trains or plays episodes"):
            calls(spec, [])
        assert api.requests == []


def test_slack_that_was_there_before_training_falls_silent():
    needs("slack_sdk")
    program = (
        "import json, sys\nfrom mcp_grpo.servers.slack import LiveSlack\nreal = "
        "LiveSlack(**json.loads(sys.argv[1]))\nimport mcp_grpo.env.episode\n"
        "real.post('C1', 'hello')"
    )
    with serving(fake_apis.slack) as api:
        command = [sys.executable, "-c", program, slack_command(api.url)[-1]]
        done = subprocess.run(
            command, env={"SLACK_BOT_TOKEN": KEY}, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert "process that trains or plays episodes" in done.stderr and [path for path, _ in api.requests] == [
            "/api/auth.test"
        ]
