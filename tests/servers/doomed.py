"""A program with servers of all kinds, each in the middle of something. It prints the ids of all processes below it and
waits to be killed."""

import json, sys

import anyio
import psutil
from fault_table import HERE, faulty

from mcp_grpo.client.pool import Pool


async def main():
    specs = [
        faulty(name="process"),
        faulty("--workdir", "{workdir}", name="workdir", isolation="workdir"),
        faulty(name="shared", isolation="shared"),
        faulty(name="cold", command="env", args=[sys.executable, str(HERE / "faulty.py")]),
    ]  # by way of a program that is not Python
    async with (
        Pool({spec.name: spec for spec in specs}) as pool,
        await pool.lease([spec.name for spec in specs]) as lease,
        anyio.create_task_group() as calls,
    ):
        orphans = [
            int((await lease.call(name, "spawn_child", {"detached": True})).content) for name in ("process", "cold")
        ]
        for name in ("process", "workdir", "cold"):
            calls.start_soon(lease.call, name, "hang")
        await anyio.sleep(0.1)
        print(json.dumps(sorted({*orphans, *(p.pid for p in psutil.Process().children(recursive=True))})), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
