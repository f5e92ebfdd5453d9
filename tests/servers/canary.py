"""Calls slack as training does, with a token in the environment: `python canary.py CALLS TRANSPORT` prints what it
tried to reach, and what leaked.

TRANSPORT is memory or stdio; a server process is watched as well as this one."""

import asyncio, json, os, random, socket, sys, tempfile
from pathlib import Path

CANARY = "xoxb-2718281828-3141592653-canaryCANARYcanaryCANARY"
WATCH = """
import os, sys
def watch(event, args, events=("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto", "socket.sendmsg")):
    if event in events and args[-1] is not None: note(f"{event} {args[1:]}")  # without an address it goes where an earlier connection does
sys.addaudithook(watch)
"""  # noqa: E501
IN_A_PROCESS = """
from mcp_grpo.servers.serve import run
def note(text):
    with open({log!r}, "a") as file: file.write(text + "\\n")
if {canary!r} in "".join(os.environ.values()): note("the token is in the environment of the server")
run("slack", ["--world-seed", "0"])
"""
LEASES, TURNS = 16, 10


def calls(rng: random.Random, world) -> list:
    "What an episode asks for: all tools, now and then wrongly."
    channel, user = rng.choice(world.channels)["id"], rng.choice(world.users)["id"]
    posted, text = dict(channel_id=channel, thread_ts="1001.0001"), rng.choice([c.name for c in world.companies])
    return [
        ("slack_list_channels", {}),
        ("slack_post_message", dict(channel_id=channel, text=text)),
        ("slack_reply_to_thread", posted | dict(text=text)),
        ("slack_add_reaction", dict(channel_id=channel, timestamp="1001.0001", reaction="eyes")),
        ("slack_get_channel_history", dict(channel_id=channel)),
        ("slack_get_thread_replies", posted),
        ("slack_get_users", {}),
        ("slack_get_user_profile", dict(user_id=user)),
        ("slack_post_message", dict(channel_id="C999", text=text)),
        ("slack_get_channel_history", dict(channel_id="https://slack.com", limit=-1)),
    ]


async def main(n: int, transport: str, log: Path) -> dict:
    "Make so many calls, and see."
    from mcp_grpo.client.pool import Pool, together
    from mcp_grpo.client.spec import embedded_specs
    from mcp_grpo.config import load_config
    from mcp_grpo.servers.world import open_world

    cfg, world, said, made = load_config("cpu").servers, open_world(0), [], 0
    specs = embedded_specs(cfg.names, transport, cfg.world_seed)
    if transport == "stdio":
        specs["slack"] = specs["slack"].model_copy(
            update={"args": ["-c", WATCH + IN_A_PROCESS.format(log=str(log), canary=CANARY)]}
        )

    async def episode(i):
        nonlocal made
        async with await pool.lease(["slack"]) as lease:
            for tool, arguments in calls(random.Random(i), world):
                result = await lease.call("slack", tool, arguments)
                if result.fault or CANARY in result.content or "[redacted]" in result.content:
                    said.append(result.content)
                made += 1

    async with Pool(specs) as pool:
        for first in range(0, -(-n // TURNS), LEASES):
            await together(episode, range(first, min(first + LEASES, -(-n // TURNS))))
    return dict(calls=made, leaked=said)


if __name__ == "__main__":
    os.environ |= {"SLACK_BOT_TOKEN": CANARY, "SLACK_TOKEN": CANARY}
    reached, seen = [], []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        exec(WATCH, {"note": reached.append})
        found = asyncio.run(main(int(sys.argv[1]), sys.argv[2], log))
        found["reached"] = reached + (log.read_text().splitlines() if log.exists() else [])
    before = len(reached)
    try:
        socket.create_connection(("127.0.0.1", 1), 0.1)  # so that it is known that the watch is awake
    except OSError:
        pass
    print(json.dumps(found | {"awake": len(reached) > before}))
