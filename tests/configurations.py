"""Twenty configuration files as VS Code, Claude Desktop, Claude Code, Cursor, Windsurf, Zed and a registry write them,
with secrets planted in them, and what reading each of them gives.

`python tests/configurations.py` reads them all and prints what was wrong; the benchmark and a test do the same."""

import contextlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from mcp_grpo.aio import run_sync
from mcp_grpo.client.hardening.secrets import server_secrets
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import SpecError, from_mcp_servers
from mcp_grpo.config import load_config
from mcp_grpo.doctor import _look_at_client_files, examine

PYTHON = json.dumps(sys.executable)
TOLD = """
import os, sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("told", log_level="ERROR", instructions=" ".join(sys.argv))

@server.tool()
def told() -> str:
    "Everything the process knows."
    return repr(dict(os.environ)) + repr(sys.argv)

print(dict(os.environ), sys.argv, file=sys.stderr)
server.run("stdio")
"""  # a server that tells its secrets, in every way it has


def secret(number: int) -> str:
    "A value that must not come out."
    return f"sk-{number:02d}-qW3rT7uI9oP1aS5dF8gH2jK4"


@dataclass(frozen=True)
class Configuration:
    "A file, and what it gives."

    client: str
    place: str  # below the home folder, which is the working folder
    text: str
    found: dict = field(default_factory=dict)  # server -> some fields of its spec; empty: it is refused
    says: str = ""  # the sentence where variables are not set, or where it is refused
    needs: dict = field(default_factory=dict)  # variables to set
    beside: dict = field(default_factory=dict)  # further files, below the home folder
    kept: list = field(default_factory=list)  # secrets in it that a run has to redact


S = [secret(i) for i in range(30)]
FILES = [
    Configuration(
        "VS Code",
        ".vscode/mcp.json",
        """// the servers of this folder
{
  "inputs": [
    {"type": "promptString", "id": "map-key", "description": "Key of the map", "password": true},
    {"type": "pickString", "id": "units", "description": "Units", "options": ["m", "ft"], "default": "m"}, /* two */
  ],
  "servers": {
    "told": {
      "type": "stdio", "command": %s, "args": ["${workspaceFolder}/told.py", "--units", "${input:units}"],
      "env": {"KEY": "${input:map-key}"}, "envFile": "${workspaceFolder}/.env", "dev": {"watch": "**/*.py"},
      "sandboxEnabled": true,
    },
  },
}"""
        % PYTHON,
        {"told": {"args": ["{home}/told.py", "--units", "m"], "env": {"KEY": S[0], "TOKEN": S[1]}}},
        "set the environment variable INPUT_MAP_KEY (its input 'map-key', Key of the map), which its entry asks for.",
        {"INPUT_MAP_KEY": S[0]},
        {"told.py": TOLD, ".env": f"TOKEN={S[1]}\n"},
        [S[0], S[1]],
    ),
    Configuration(
        "VS Code, user",
        ".config/Code/User/mcp.json",
        '{"servers": {"github": {"type": "http", "url": "https://api.example/mcp", '
        '"headers": {"Authorization": "Bearer ${input:token}"}}, "old": {"type": "sse", "url": "https://old.example/sse"}},'
        '\n"inputs": [{"id": "token", "type": "promptString", "description": "Token", "password": true}]}',
        {"github": {"headers": {"Authorization": f"Bearer {S[2]}"}}, "old": {"sse": True}},
        "set the environment variable INPUT_TOKEN (its input 'token', Token), which its entry asks for.",
        {"INPUT_TOKEN": S[2]},
        kept=[S[2]],
    ),
    Configuration(
        "VS Code, settings",
        ".config/Code - Insiders/User/settings.json",
        '{"editor.fontSize": 13, // points\n "mcp": {"servers": {"time": {"command": "uvx", "args": '
        '["mcp-server-time", "--local-timezone=${env:ZONE:-UTC}"], "gallery": true, "version": "1"}}, "inputs": []},}',
        {"time": {"command": "uvx", "args": ["mcp-server-time", "--local-timezone=UTC"]}},
    ),
    Configuration(
        "Claude Desktop",
        ".config/Claude/claude_desktop_config.json",
        json.dumps(
            {
                "globalShortcut": "Ctrl+Space",
                "mcpServers": {
                    "files": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]},
                    "search": {"command": "npx", "args": ["-y", "search-mcp"], "env": {"SEARCH_API_KEY": S[3]}},
                },
            }
        ),
        {"files": {"command": "npx"}, "search": {"env": {"SEARCH_API_KEY": S[3]}}},
        kept=[S[3]],
    ),
    Configuration(
        "Claude Desktop, bridged",
        ".config/Claude/claude_desktop_config.json",
        '{"mcpServers": {"remote": {"command": "npx", "args": ["mcp-remote", "https://mcp.example/sse", "--header", '
        f'"Authorization: Bearer {S[4]}"]' + "}}}",
        {"remote": {"args": ["mcp-remote", "https://mcp.example/sse", "--header", f"Authorization: Bearer {S[4]}"]}},
        kept=[S[4]],
    ),
    Configuration(
        "Claude Code, project",
        ".mcp.json",
        '{"mcpServers": {"api": {"type": "http", "url": "${API_BASE:-https://api.example}/mcp", "timeout": 600000, '
        '"headers": {"X-Api-Key": "${API_KEY}"}, "alwaysLoad": true}, "local": {"command": "${HOME}/bin/tool", '
        '"args": []}}}',
        {
            "api": {"url": "https://api.example/mcp", "timeout": 600.0, "headers": {"X-Api-Key": S[5]}},
            "local": {"command": "{home}/bin/tool"},
        },
        "set the environment variable API_KEY, which its entry asks for.",
        {"API_KEY": S[5]},
        kept=[S[5]],
    ),
    Configuration(
        "Claude Code, plugin",
        "plugin/.mcp.json",
        '{"database": {"command": "uvx", "args": ["db-mcp"], "env": {"DB_PASSWORD": "%s"}}}' % S[6],
        {"database": {"command": "uvx"}},
        kept=[S[6]],
    ),
    Configuration(
        "Claude Code, user",
        ".claude.json",
        json.dumps(
            {
                "numStartups": 7,
                "oauthAccount": {"accessToken": S[7]},
                "mcpServers": {"sentry": {"type": "http", "url": "https://mcp.sentry.example/mcp"}},
                "projects": {
                    "{home}": {
                        "mcpServers": {"linear": {"type": "sse", "url": "https://linear.example/sse"}},
                        "history": [S[8]],
                    },
                    "/elsewhere": {"mcpServers": {"other": {"command": "other"}}},
                },
            }
        ),
        {"sentry": {"sse": False}, "linear": {"sse": True}},
    ),
    Configuration(
        "Cursor",
        ".cursor/mcp.json",
        '{"mcpServers": {"told": {"command": %s, "args": ["${workspaceFolder}/told.py", "--api-key", "%s"], '
        '"env": {"TOKEN": "${env:CURSOR_TOKEN}"}}, "remote": {"url": "https://r.example/mcp", '
        '"headers": {"API_KEY": "%s"}}, "off": {"command": "off", "disabled": true}}}' % (PYTHON, S[9], S[10]),
        {"told": {"env": {"TOKEN": S[11]}}, "remote": {"headers": {"API_KEY": S[10]}}},
        "set the environment variable CURSOR_TOKEN, which its entry asks for.",
        {"CURSOR_TOKEN": S[11]},
        {"told.py": TOLD},
        [S[9], S[10], S[11]],
    ),
    Configuration(
        "Cursor, OAuth",
        ".cursor/mcp.json",
        '{"mcpServers": {"oauth": {"url": "https://o.example/mcp", "auth": {"CLIENT_ID": "me", '
        '"CLIENT_SECRET": "${env:CLIENT_SECRET}", "scopes": ["read"]}}}}',
        {"oauth": {}},
        "set the environment variable CLIENT_SECRET, which its entry asks for.",
        {"CLIENT_SECRET": S[12]},
        kept=[S[12]],
    ),
    Configuration(
        "Windsurf",
        ".codeium/windsurf/mcp_config.json",
        '{"mcpServers": {"figma": {"serverUrl": "https://figma.example/mcp", "headers": '
        '{"Authorization": "Bearer ${file:~/figma.key}"}, "disabledTools": ["delete"]}, '
        '"github": {"command": "docker", "args": ["run", "-i", "--rm", "-e", "GITHUB_TOKEN", "ghcr.io/gh/mcp"], '
        '"env": {"GITHUB_TOKEN": "${env:GITHUB_TOKEN}"}}}}',
        {"figma": {"headers": {"Authorization": f"Bearer {S[13]}"}}, "github": {"env": {"GITHUB_TOKEN": S[14]}}},
        "set the environment variable GITHUB_TOKEN, which its entry asks for.",
        {"GITHUB_TOKEN": S[14]},
        {"figma.key": f"{S[13]}\n"},
        [S[13], S[14]],
    ),
    Configuration(
        "Windsurf, cut off",
        ".codeium/windsurf/mcp_config.json",
        '{"mcpServers": {"a": {"command": "a", "env": {"TOKEN": "%s"},' % S[15],
        says="is not JSON (",
    ),
    Configuration(
        "Zed",
        ".config/zed/settings.json",
        """// Zed settings
{
  "theme": "One Dark",
  "context_servers": {
    "local": {"enabled": true, "source": "custom", "command": "tool", "args": ["--port", "0"], "env": {"A_KEY": "%s"}},
    "remote": {"url": "https://z.example/mcp", "headers": {"Authorization": "Bearer %s"}},
    "postgres": {"source": "extension", "enabled": true, "settings": {"database_url": "postgres://me:%s@db/x"}},
  },
}"""
        % (S[16], S[17], S[18]),
        {"local": {"env": {"A_KEY": S[16]}}, "remote": {"headers": {"Authorization": f"Bearer {S[17]}"}}},
        kept=[S[16], S[17]],
    ),
    Configuration(
        "Zed, until 2025",
        ".zed/settings.json",
        '{"context_servers": {"old": {"command": {"path": "tool", "args": ["--stdio"], "env": {"K_TOKEN": "%s"}}, '
        '"settings": {}}}}' % S[19],
        {"old": {"command": "tool", "args": ["--stdio"], "env": {"K_TOKEN": S[19]}}},
        kept=[S[19]],
    ),
    Configuration(
        "registry, npm",
        "server.json",
        json.dumps(
            {
                "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
                "name": "io.github.example/weather",
                "version": "1.2.0",
                "packages": [
                    {
                        "registryType": "npm",
                        "identifier": "@example/weather",
                        "version": "1.2.0",
                        "transport": {"type": "stdio"},
                        "runtimeArguments": [{"type": "named", "name": "--silent"}],
                        "packageArguments": [
                            {
                                "type": "named",
                                "name": "--units",
                                "value": "{units}",
                                "variables": {"units": {"default": "m"}},
                            }
                        ],
                        "environmentVariables": [
                            {"name": "WEATHER_KEY", "description": "a key", "isRequired": True, "isSecret": True},
                            {"name": "WEATHER_MODE", "choices": ["a", "b"], "default": "a"},
                        ],
                    }
                ],
            }
        ),
        {"weather": {"command": "npx", "env": {"WEATHER_KEY": S[20], "WEATHER_MODE": "a"}}},
        "set the environment variable WEATHER_KEY, which its entry asks for.",
        {"WEATHER_KEY": S[20]},
        kept=[S[20]],
    ),
    Configuration(
        "registry, PyPI",
        "server.json",
        json.dumps(
            {
                "name": "io.github.example/notes",
                "version": "0.3.1",
                "packages": [
                    {
                        "registry_type": "pypi",
                        "identifier": "notes-mcp",
                        "version": "0.3.1",
                        "transport": {"type": "stdio"},
                        "package_arguments": [{"type": "positional", "value_hint": "folder", "is_required": True}],
                        "environment_variables": [{"name": "NOTES_TOKEN", "is_secret": True}],
                    }
                ],
            }
        ),
        {"notes": {"args": ["--from", "notes-mcp==0.3.1", "notes-mcp", "/notes"], "env": {"NOTES_TOKEN": S[21]}}},
        "set the environment variable INPUT_FOLDER, which its entry asks for.",
        {"INPUT_FOLDER": "/notes", "NOTES_TOKEN": S[21]},
        kept=[S[21]],
    ),
    Configuration(
        "registry, remote",
        "server.json",
        json.dumps(
            {
                "server": {
                    "name": "com.example/crm",
                    "version": "2",
                    "remotes": [
                        {
                            "type": "streamable-http",
                            "url": "https://{tenant}.example/mcp",
                            "variables": {"tenant": {"isRequired": True}},
                            "headers": [
                                {
                                    "name": "Authorization",
                                    "value": "Bearer {token}",
                                    "variables": {"token": {"isRequired": True, "isSecret": True}},
                                }
                            ],
                        }
                    ],
                },
                "_meta": {},
            }
        ),
        {"crm": {"url": "https://acme.example/mcp", "headers": {"Authorization": f"Bearer {S[22]}"}}},
        "set the environment variables INPUT_TENANT, INPUT_TOKEN, which its entry asks for.",
        {"INPUT_TENANT": "acme", "INPUT_TOKEN": S[22]},
        kept=[S[22]],
    ),
    Configuration(
        "registry, a list",
        "servers.json",
        json.dumps(
            {
                "servers": [{"server": {"name": "a/b", "remotes": [{"type": "sse", "url": "https://b.example"}]}}],
                "metadata": {"count": 1},
            }
        ),
        says="is a list of a registry: write the description of one server into a file",
    ),
    Configuration(
        "registry, a bundle",
        "server.json",
        '{"name": "a/bundle", "packages": [{"registryType": "mcpb", "identifier": "https://b.example/x.mcpb", '
        '"transport": {"type": "stdio"}}]}',
        says="none of its packages (mcpb) is one of npm, pypi and oci",
    ),
    Configuration(
        "VS Code, a command",
        ".vscode/mcp.json",
        '{"servers": {"picked": {"command": "tool", "args": ["${command:pick.folder}"], "env": {"X_KEY": "%s"}}}}'
        % S[23],
        says="${command:pick.folder} is not understood; replace it by its value or by ${env:NAME}.",
    ),
]


@contextlib.contextmanager
def home_of(file: Configuration):
    "The home and working folder in which a file lies; variables of other files are not set."
    before = os.getcwd()
    gone = {name for one in FILES for name in one.needs}
    with tempfile.TemporaryDirectory() as home:
        home = os.path.realpath(home)
        for place, text in ({file.place: file.text} | file.beside).items():
            (path := Path(home, place)).parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{home}", home))
        kept = {name: value for name, value in os.environ.items() if name not in gone}
        own = {"HOME": home, "XDG_CONFIG_HOME": "", "CODEX_HOME": ""}
        with patch.dict(os.environ, kept | own, clear=True):
            os.chdir(home)
            try:
                yield home
            finally:
                os.chdir(before)


def refusal(path: str) -> str:
    "Why a file is not read; empty if it is."
    try:
        from_mcp_servers(path)
    except SpecError as error:
        return "".join(traceback.format_exception(error)) if "\n" in str(error) else str(error)
    return ""


async def ask(specs: dict) -> str:
    "What a server tells, by its tool, about itself and in its error output."
    async with Pool(specs) as pool:
        async with await pool.lease(["told"]) as lease:
            result = await lease.call("told", "told", {})
            wrote = lease.session("told").session.error_output
        return f"{result} {pool.instructions()} {wrote}"


def read(file: Configuration, opened: bool = False) -> tuple[list[str], str]:
    "What was wrong with reading a file, and all that was put out meanwhile; `opened`: its servers are started too."
    wrong, told, log = [], [], io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        with home_of(file) as home, contextlib.redirect_stderr(log), contextlib.redirect_stdout(log):
            told += [f"{finding}" for finding in _look_at_client_files()]
            said = refusal(file.place)
            told.append(said)
            if (
                bool(said) != bool(file.says)
                or file.says not in said
                or "\n" in said
                or said
                and file.place not in said
            ):
                wrong.append(f"it says {said!r}")
            with patch.dict(os.environ, file.needs):
                told += [f"{finding}" for finding in _look_at_client_files()]
                if file.found:
                    specs = from_mcp_servers(file.place)
                    told += [repr(specs), str(specs), repr([*specs.values()])]
                    for name, fields in file.found.items():
                        for key, value in fields.items():
                            meant = json.loads(json.dumps(value).replace("{home}", home))
                            if (got := getattr(specs.get(name), key, None)) != meant:
                                wrong.append(f"{name}: {key} is {got!r}, not {meant!r}")
                    if extra := specs.keys() - file.found.keys():
                        wrong.append(f"it has {sorted(extra)} too")
                    hidden = {text for spec in specs.values() for text in server_secrets(spec, dict(os.environ))}
                    lost = [text for text in file.kept if not any(text in known for known in hidden)]
                    wrong += [f"the secret number {S.index(text)} would not be redacted" for text in lost]
                else:
                    told.append(refusal(file.place))
                if opened:
                    cfg = load_config("cpu", servers={"names": [], "file": str(Path(home, file.place))})
                    told += [f"{finding}" for finding in examine(cfg, Path(home, "outputs"))]
                    told.append(run_sync(ask, {"told": specs["told"]}))
                    if "1 tools after" not in "\n".join(told) or "[redacted]" not in told[-1]:
                        wrong.append(f"its server told {told[-1][:300]!r}")
    finally:
        logging.getLogger().removeHandler(handler)
    return wrong, "\n".join([*told, log.getvalue()])


def leaked(text: str) -> list[int]:
    "The numbers of the secrets in a text, whole or the half of them."
    return [i for i, value in enumerate(S) if value in text or value[4:] in text or value[-12:] in text]


def results() -> list[dict]:
    "What was wrong with each file, and the secrets that came out."
    found = []
    for file in FILES:
        wrong, text = read(file, opened="told.py" in file.beside)
        lines = len(re.findall(r"\n", text)) + 1
        found.append(
            {"client": file.client, "wrong": wrong, "leaked": leaked(text), "lines": lines, "read": bool(file.found)}
        )
    return found


if __name__ == "__main__":
    for one in results():
        print(json.dumps(one))
