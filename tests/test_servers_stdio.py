"Each embedded server as a subprocess, spoken to with the plain MCP client."

import json, sys

import anyio
import mcp
import psutil
import pytest
from conftest import commands

CALLS = {
    "polygon": ("get_market_status", {}),
    "fmp": ("fmp_get_market_gainers", {}),
    "slack": ("slack_list_channels", {}),
}
TOOLS = {  # a few names that the official servers use too
    "polygon": {"get_aggs", "get_last_trade", "get_ticker_details", "list_ticker_news", "get_previous_close_agg"},
    "fmp": {"fmp_get_quote", "fmp_get_company_profile", "fmp_search_ticker", "fmp_get_income_statement"},
    "slack": {"slack_post_message", "slack_get_channel_history", "slack_get_users", "slack_list_channels"},
}


def client(name: str):
    return mcp.Client(
        mcp.StdioServerParameters(command=sys.executable, args=["-m", f"mcp_grpo.servers.{name}", "--world-seed", "0"]),
        mode="legacy",
        read_timeout_seconds=120,
    )


@pytest.mark.parametrize("name", sorted(CALLS))
def test_server_over_stdio(name):
    tool, arguments = CALLS[name]

    async def talk():
        with anyio.fail_after(300):
            async with client(name) as c:
                tools = {t.name for t in (await c.list_tools()).tools}
                return tools, await c.call_tool(tool, arguments)

    tools, good = anyio.run(talk)
    assert TOOLS[name] <= tools
    assert not good.is_error and good.content[0].text.startswith("{")
    assert not [
        command for command in commands(psutil.Process().children(recursive=True)) if "mcp_grpo.servers" in command
    ]


def test_slack_over_stdio_keeps_state_to_its_process():
    async def post_and_read(text):
        async with client("slack") as c:
            channels = await c.call_tool("slack_list_channels", {})
            name = json.loads(channels.content[0].text)["channels"][0]["name"]
            if text:
                await c.call_tool("slack_post_message", {"channel_id": f"#{name}", "text": text})
            return (
                (await c.call_tool("slack_get_channel_history", {"channel_id": f"#{name}", "limit": 50}))
                .content[0]
                .text
            )

    assert "canary 7391" in anyio.run(post_and_read, "canary 7391")
    assert "canary 7391" not in anyio.run(post_and_read, "")
