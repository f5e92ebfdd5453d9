"""The REST APIs of the four live services on a local socket: answers in the shapes the real ones have, and the ways
they fail.

What a request is about chooses the failure: `E429` as ticker, symbol, word of a query, address or end of a channel's
id. Without the right key every path answers 401. Every error quotes the key, as some services do, so that a test sees
whether it gets out.
"""

import contextlib, json, re, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

KEY = "sk-live-7f3a9c2e51d8b604"  # what the tests put into the environment; opens nothing
SLOW = 12.0  # seconds

BAR = {
    "v": 70790813.0,
    "vw": 131.6292,
    "o": 130.465,
    "c": 130.15,
    "h": 133.41,
    "l": 129.89,
    "t": 1673240400000,
    "n": 645365,
}
COMPANY = {
    "ticker": "AAPL",
    "name": "Apple Inc.",
    "market": "stocks",
    "locale": "us",
    "type": "CS",
    "active": True,
    "sic_code": "3571",
    "sic_description": "ELECTRONIC COMPUTERS",
    "total_employees": 154000,
    "address": {"address1": "ONE APPLE PARK WAY", "city": "CUPERTINO", "state": "CA"},
}
FUND = {
    "ticker": "SPY",
    "name": "SPDR S&P 500 ETF Trust",
    "market": "stocks",
    "locale": "us",
    "type": "ETF",
    "active": True,
}
NEWS = {
    "id": "1",
    "title": "Apple opens",
    "published_utc": "2024-06-24T18:33:53Z",
    "article_url": "https://x.example/",
    "tickers": ["AAPL"],
}
QUOTE = {
    "symbol": "AAPL",
    "name": "Apple Inc.",
    "price": 268.47,
    "changePercentage": -0.48189,
    "change": -1.3,
    "volume": 45140079,
    "exchange": "NASDAQ",
    "previousClose": 269.77,
    "timestamp": 1762549202,
}
PROFILE = {
    "symbol": "AAPL",
    "companyName": "Apple Inc.",
    "price": 268.47,
    "sector": "Technology",
    "ceo": "Timothy D. Cook",
    "city": "Cupertino",
    "state": "CA",
    "fullTimeEmployees": "164000",
}
STATEMENT = {
    "date": "2024-09-28",
    "symbol": "AAPL",
    "reportedCurrency": "USD",
    "fiscalYear": "2024",
    "period": "FY",
    "revenue": 391035000000,
    "costAndExpenses": 267819000000,
    "netIncome": 93736000000,
}
MOVER = {
    "symbol": "LUMO",
    "price": 9.31,
    "name": "Lumo Inc.",
    "change": 2.1,
    "changesPercentage": 29.12621,
    "exchange": "NASDAQ",
}
PAGE = {
    "title": "Apple",
    "url": "https://apple.example/",
    "content": "Apple makes computers.",
    "score": 0.91,
    "raw_content": None,
}
MESSAGE = {
    "type": "message",
    "user": "U1",
    "text": "a &lt; b",
    "ts": "1700000002.000100",
    "thread_ts": "1700000002.000100",
    "reply_count": 1,
    "reactions": [{"name": "bird", "users": ["U1"], "count": 1}],
}
REPLY = {"type": "message", "bot_id": "B1", "text": "yes", "ts": "1700000003.000100", "thread_ts": "1700000002.000100"}
USER = {
    "id": "U1",
    "team_id": "T1",
    "name": "ada",
    "deleted": False,
    "real_name": "Ada Lovelace",
    "profile": {"title": "Analyst", "real_name": "Ada Lovelace"},
}


def known(ask: dict, rows: list) -> list:
    "The rows, where the question is about a symbol that exists."
    return rows if "NONE" not in json.dumps(ask) else []


def polygon(path: str, ask: dict):
    "Massive (polygon): objects with the rows under `results`."
    nobody = "NONE" in path + json.dumps(ask)
    match path.split("/")[1:]:
        case ["v2", "last", "trade", ticker]:
            found = {"T": ticker, "p": 129.8473, "s": 25, "t": 1617901342969834000}
        case ["v3", "reference", "tickers", ticker]:
            found = FUND if ticker == "SPY" else COMPANY
        case ["v2", "reference", "news"]:
            return 200, {"status": "OK", "results": known(ask, [NEWS])}
        case ["v2", "aggs", "ticker", ticker, *what]:  # without bars there is no `results` at all
            none = {"ticker": ticker, "queryCount": 0, "resultsCount": 0, "adjusted": True, "status": "OK"}
            return 200, none if nobody or "1999" in path else none | {
                "results": [BAR] if what == ["prev"] else [BAR, BAR | {"t": 1673326800000}]
            }
        case ["v1", "marketstatus", "now"]:
            return 200, {"market": "closed", "serverTime": "2023-01-09T20:00:00-05:00", "exchanges": {"nyse": "closed"}}
        case _:
            nobody = True
    return (
        (404, {"status": "NOT_FOUND", "message": "Data not found."})
        if nobody
        else (200, {"status": "OK", "request_id": "1", "results": found})
    )


def fmp(path: str, ask: dict):
    "Financial Modeling Prep: bare lists, empty where nothing is known."
    quarters = [
        STATEMENT
        | {
            "fiscalYear": "2025",
            "period": "Q1",
            "revenue": 124300000000,
            "costAndExpenses": 81468000000,
            "netIncome": 36330000000,
        }
    ]
    rows = {
        "quote": [QUOTE],
        "profile": [PROFILE],
        "income-statement": quarters if ask.get("period") == "quarter" else [STATEMENT],
        "search-symbol": []
        if "Inc" in ask.get("query", "")
        else [{"symbol": "AAPL", "name": "Apple Inc.", "exchange": "NASDAQ"}],
        "search-name": [{"symbol": "AAPL", "name": "Apple Inc.", "exchange": "NASDAQ"}],
        "biggest-gainers": [MOVER] * 5,
        "biggest-losers": [MOVER] * 5,
        "news/stock": [
            {
                "symbol": "AAPL",
                "publishedDate": "2025-02-03 21:05:14",
                "publisher": "X",
                "title": "Apple opens",
                "url": "https://x.example/",
            }
        ],
    }
    name = path.removeprefix("/stable/")
    return (200, known(ask, rows[name])) if name in rows else (404, {"Error Message": "no such path"})


def tavily(path: str, ask: dict):
    "Tavily: one JSON object in, one out."
    if path == "/search":
        page = (
            PAGE
            | ({"raw_content": "All of it."} if ask.get("include_raw_content") else {})
            | ({"published_date": "2025-02-03"} if ask.get("topic") == "news" else {})
        )
        return 200, {
            "query": ask["query"],
            "answer": None,
            "images": [],
            "results": known(ask, [page]),
            "response_time": 0.5,
        }
    if path != "/extract":
        return 404, {"detail": {"error": "no such path"}}
    good = [{"url": url, "raw_content": "All of it.", "images": []} for url in ask["urls"] if "none" not in url]
    return 200, {
        "results": good,
        "failed_results": [{"url": url, "error": "Failed to fetch url"} for url in ask["urls"] if "none" in url],
        "response_time": 0.1,
    }


def slack(path: str, ask: dict):
    "Slack: always 200, with `ok` and, where it is false, an error code."
    method, channel = path.removeprefix("/api/"), ask.get("channel", "")
    if (code := re.search(r"X([a-z_]+)$", channel)) and method != "conversations.info":
        return 200, {"ok": False, "error": code[1]}
    match method:
        case "auth.test":
            found = {"team_id": "T1", "team": "Example", "user_id": "U9", "bot_id": "B1"}
        case "conversations.info":
            found = {
                "channel": {"id": channel, "name": f"name-{channel.lower()}", "is_channel": True, "is_member": True}
            }
        case "chat.postMessage":
            found = {"channel": channel, "ts": "1700000009.000100", "message": {"text": ask["text"]}}
        case "conversations.history":
            found = {"messages": [MESSAGE], "has_more": False}
        case "conversations.replies":
            found = {"messages": [MESSAGE, REPLY]}
        case "reactions.add":
            found = {}
        case "users.list":
            found = {
                "members": [USER, USER | {"id": "U2", "deleted": True}],
                "response_metadata": {"next_cursor": "" if ask.get("cursor") else "bmV4dA=="},
            }
        case "users.info" if ask["user"] == "U1":
            found = {"user": USER}
        case "users.info":
            return 200, {"ok": False, "error": "user_not_found"}
        case _:
            return 200, {"ok": False, "error": "unknown_method"}
    return 200, {"ok": True} | found


ERROR = {
    "polygon": lambda words: {"status": "ERROR", "error": words},
    "fmp": lambda words: {"Error Message": words},
    "tavily": lambda words: {"detail": {"error": words}},
    "slack": lambda words: {"ok": False, "error": words},
}


class Handler(BaseHTTPRequestHandler):
    "Answers for whichever service the server stands for."

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer(b"")

    def do_POST(self):
        self._answer(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _asked(self, body: bytes) -> tuple:
        "The path, and what is asked, wherever it stands."
        url, text = urlsplit(self.path), body.decode()
        ask = (
            json.loads(text) if text.startswith("{") else {k: v[0] for k, v in parse_qs(f"{url.query}&{text}").items()}
        )
        self.server.requests.append((url.path, ask))
        return url.path, ask

    def _answer(self, body: bytes):
        path, ask = self._asked(body)
        given = self.headers.get("apikey") or self.headers.get("authorization", "").removeprefix("Bearer ")
        failure = re.search(r"E(400|401|403|404|429|500|503|SLOW|DRIP|CUT|HTML|SHAPE|GONE)", path + json.dumps(ask))
        kind = "401" if given != KEY else "" if path.endswith("conversations.info") or not failure else failure[1]
        if not kind:
            return self._send(*self.server.service(path, ask))
        with contextlib.suppress(OSError):
            self._fail(kind)

    def _fail(self, kind: str):
        if kind.isdigit():
            words = (
                "ratelimited"
                if kind == "429" and self.server.service is slack
                else f"The request with key {KEY} is not possible."
            )
            return self._send(
                int(kind),
                ERROR[self.server.service.__name__](words),
                {"Retry-After": "50"} if kind in ("429", "503") else {},
            )
        if kind == "SLOW":
            time.sleep(SLOW)
        if kind == "HTML":
            return self._write(b'<html>{"results": [')
        if kind == "SHAPE":
            return self._write(b'{"ok": true, "results": 3, "messages": 3, "answer": []}')
        if kind == "CUT":
            self._write(b'{"ok": true, "results": [', length=5000)
        if kind == "DRIP":
            self._drip()
        self.close_connection = True  # GONE: without a word

    def _drip(self):
        "A byte now and then, so that no read ever takes long."
        self._write(b"", length=5000)
        for _ in range(20):
            self.wfile.write(b" ")
            time.sleep(SLOW / 20)

    def _send(self, status: int, data, headers=()):
        self._write(json.dumps(data).encode(), status, headers=dict(headers))

    def _write(self, body: bytes, status: int = 200, length: int | None = None, headers=()):
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": len(body) if length is None else length,
            **dict(headers),
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serving(service):
    "The service on a free port: gives the server, with `.url` and the `.requests` that came in."
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.service, server.requests = True, service, []
    server.url = f"http://127.0.0.1:{server.server_port}" + {fmp: "/stable", slack: "/api/"}.get(service, "")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
