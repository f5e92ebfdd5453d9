"Whatever a model may write as arguments, tried on the tools of the embedded servers."

import importlib, json, time
from contextlib import contextmanager
from dataclasses import dataclass, field

import jsonschema, mcp_types
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError

from mcp_grpo.servers.world import open_world

CPU_SECONDS = 0.1  # of one call, at most
HOSTILE = [
    "",
    " ",
    "\0",
    "\n" * 50,
    "null",
    "NaN",
    "-1",
    "../../etc/passwd",
    "{workdir}",
    "${HOME}",
    "%s%n",
    "'; DROP TABLE pages; --",
    'a" OR "b',
    "NEAR(a b)",
    "title:*",
    "a*b -c +d ^e",
    "<|im_start|>system",
    "</tool_call>",
    "\u202e\u200b\ufeff",
    "🙂" * 200,
    "é" * 5000,
    "x" * 100_000,
    "(" * 2000,
    "9" * 400,
    "https://",
    "https://[",
    "://///",
    "2025-13-45",
    "2025-06-31",
    "0000-00-00",
    "٣٤",
    "raise",
    "while",
    "1/0",
    "x = 'a' * 10**6\nx",
    "print('a' * 10**5)",
]
NUMBERS = [0, -1, 1, 20, 21, 2**31, 2**63, -(2**63) - 1, 10**30, 10**4000, 0.5, 1.0, -0.0, 1e308, 5e-324]
ODD = st.recursive(
    st.sampled_from([None, True, False, *NUMBERS, *HOSTILE]),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=8,
)


def meant() -> dict:
    "Argument -> strings that mean something there."
    world = open_world(0)
    company, channel, user, days = (
        world.companies[0],
        world.channels[0],
        world.users[0],
        ["2024-01-01", "2025-06-02", "2025-06-30", "2026-01-01"],
    )
    symbols, channels = [c.symbol for c in world.companies[:3]], [channel["id"], channel["name"], "#" + channel["name"]]
    return dict(
        ticker=symbols,
        symbol=symbols,
        from_=days,
        to=days,
        date=days,
        channel_id=channels,
        user_id=[user["id"]],
        thread_ts=["1001.0001"],
        timestamp=["1001.0001"],
        text=["hello", company.name],
        reaction=["eyes", "wave"],
        query=[company.name, company.sector, company.symbol, "who buys steel"],
        urls=[p.url for p in world.pages[:40:10]],
        include_domains=["companies.example", "ledger.example"],
        code=["1 + 1", "x = 3", "x", "print('hello')", "import numpy as np\nnp.arange(3)"],
    )


def fitting(schema: dict, words: list):
    "Values that are as a schema asks, near its limits, too; strings are often some of `words`."
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            return st.one_of(
                *(st.sampled_from(words) for _ in range(6) if words), st.sampled_from(HOSTILE), st.text(max_size=60)
            )
        case "integer":
            return st.integers(-3, 30) | st.integers() | st.sampled_from([n for n in NUMBERS if isinstance(n, int)])
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False) | st.integers()
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(fitting(schema.get("items", {}), words), max_size=25)
        case _:
            return ODD


FITTING, ODDLY, LEFT_OUT = range(3)


@st.composite
def arguments(draw, schema: dict):
    "Arguments of a tool: mostly as they should be, but each may be left out or anything at all, and there may be more."
    words, drawn = meant(), {}
    for name, prop in schema["properties"].items():
        how = draw(
            st.sampled_from([FITTING] * 12 + [ODDLY] + [LEFT_OUT] * (1 if name in schema.get("required", ()) else 8))
        )
        if how != LEFT_OUT:
            drawn[name] = draw(ODD if how == ODDLY else fitting(prop, words.get(name, [])))
    return drawn | draw(st.just({}) | st.just({}) | st.dictionaries(st.text(max_size=8), ODD, max_size=2))


@dataclass
class Findings:
    "What many calls of a tool came to."

    tool: str
    cases: int = 0
    errors: int = 0  # cases that were answered with an error
    slowest: float = 0.0  # CPU seconds of a call
    complaints: list = field(default_factory=list)


def complaint(tool: mcp_types.Tool, result) -> str:
    "What is wrong with an answer, or nothing."
    text = result.content[0].text if result.content else ""
    if result.is_error:
        return (
            "" if text.strip() and text.strip() != f"Error executing tool {tool.name}" else f"no clear error: {text!r}"
        )
    if tool.output_schema:
        jsonschema.validate(result.structured_content, tool.output_schema)
    return "" if isinstance(json.loads(text), dict) else f"no object: {text[:80]!r}"


@contextmanager
def opened(server):
    "A function that calls a tool of a server object in this process, (answer, CPU seconds); and its tools."
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server, mode="legacy")) as client:

        async def send(tool, arguments):
            params = mcp_types.CallToolRequestParams(name=tool, arguments=arguments)
            began = time.process_time()
            try:
                result = await client.session.send_request(
                    mcp_types.CallToolRequest(params=params), mcp_types.CallToolResult
                )
            except MCPError as e:  # the protocol's own way of saying that the call was wrong
                if e.code != mcp_types.INVALID_PARAMS:
                    raise
                result = mcp_types.CallToolResult(
                    content=[mcp_types.TextContent(type="text", text=str(e))], is_error=True
                )
            return result, time.process_time() - began

        yield lambda tool, arguments: portal.call(send, tool, arguments), portal.call(client.list_tools).tools


def fuzz(tool: mcp_types.Tool, call, cases: int) -> Findings:
    "Call a tool that often."
    found = Findings(tool.name)

    def once(given_arguments):
        result, seconds = call(tool.name, given_arguments)
        if seconds > CPU_SECONDS:
            result, seconds = call(tool.name, given_arguments)  # what is made once, or a garbage collection
        assert not (wrong := complaint(tool, result)), wrong
        assert seconds <= CPU_SECONDS, f"{seconds:.3f} s of CPU"
        found.cases, found.errors, found.slowest = (
            found.cases + 1,
            found.errors + bool(result.is_error),
            max(found.slowest, seconds),
        )

    quiet = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    try:
        quiet(given(arguments(tool.input_schema))(once))()
    except Exception as e:
        found.complaints.append("\n".join([f"{type(e).__name__}: {e}", *getattr(e, "__notes__", [])])[:2000])
    return found


def fuzz_server(server, cases: int) -> list:
    "The findings on each tool of a server object, or of an embedded server by its name."
    if isinstance(server, str):
        server = importlib.import_module(f"mcp_grpo.servers.{server}").make_server()
    with opened(server) as (call, tools):
        return [fuzz(tool, call, cases) for tool in tools]
