"Server files as clients, editors and the registry have them, in a home of their own."

import json
import os
import subprocess
import sys

import configurations
import pytest
from mcp_grpo.aio import run_sync
from mcp_grpo.client.hardening.secrets import server_secrets
from mcp_grpo.client.pool import Pool
from mcp_grpo.client.spec import SpecError, from_mcp_servers

KEY = "open sesame 4711"
SERVER = """
import os
from mcp.server.mcpserver import MCPServer
server = MCPServer("told")

@server.tool()
def told() -> str:
    return " ".join([os.getcwd(), *(os.environ[name] for name in ("KEY", "UNITS", "FROM_FILE"))])

server.run("stdio")
"""
VS_CODE = """\ufeff{
  // the servers of this folder
  "inputs": [
    {"type": "promptString", "id": "map-key", "description": "the key of the map", "password": true},
    {"type": "pickString", "id": "units", "options": ["m", "ft"], "default": "m"},
  ],
  "servers": {
    "told": {
      "type": "stdio",
      "command": PYTHON, /* not "python" */
      "args": ["${workspaceFolder}${pathSeparator}told.py"],
      "cwd": "${workspaceFolder}",
      "env": {"KEY": "${input:map-key}", "UNITS": "${input:units}"},
      "envFile": "${workspaceFolder}/.env",
    },
    "wiki": {"type": "sse", "url": "https://wiki.example/sse", "headers": {"X-Key": "${env:WIKI_KEY:-none}"}},
  },
}"""
CODEX = """model = "o"

[mcp_servers.docs]
command = "npx"
args = ["-y", "docs-mcp"]
startup_timeout_sec = 20
"""
CONTINUE = """name: mine
mcpServers:
  - name: sqlite
    command: npx
    args: [-y, mcp-sqlite]
"""
CLINE = {"cline": {"command": "c", "autoApprove": []}, "off": {"command": "o", "disabled": True}}
DESK = {"desk": {"command": "desk", "env": {"DESK_KEY": "${DESK_KEY}"}}}
FILES = {  # a client's place -> what is there
    ".claude.json": json.dumps({"mcpServers": {"notes": {"type": "http", "url": "https://notes.example/mcp"}}}),
    ".cursor/mcp.json": '{"mcpServers": {"told": {"command": "told", "args": ["--token", "hidden-one"]}}}',
    ".codex/config.toml": CODEX,
    ".continue/mcpServers/sqlite.yaml": CONTINUE,
    ".gemini/settings.json": '{"mcpServers": {"old": {"url": "https://old.example/sse", "timeout": 5000}}}',
    ".codeium/windsurf/mcp_config.json": '{"mcpServers": {"far": {"serverUrl": "https://far.example/mcp"}}}',
    ".config/zed/settings.json": '{"context_servers": {"zed": {"source": "custom", "command": "zed-mcp"}}}',
    ".config/Claude/claude_desktop_config.json": json.dumps({"mcpServers": DESK}),
    ".config/Code/User/settings.json": '{"editor.tabSize": 4}',
    ".cline/data/settings/cline_mcp_settings.json": json.dumps({"mcpServers": CLINE}),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    "A home and working folder with the files of every client."
    for place, text in FILES.items():
        (path := tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "CODEX_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def test_the_file_of_vs_code_starts_its_server(tmp_path, monkeypatch):
    (tmp_path / "told.py").write_text(SERVER)
    (tmp_path / ".env").write_text("FROM_FILE=yes\nUNITS=ft\n")
    (tmp_path / ".vscode").mkdir()
    (file := tmp_path / ".vscode/mcp.json").write_text(VS_CODE.replace("PYTHON", json.dumps(sys.executable)))
    with pytest.raises(SpecError) as missing:
        from_mcp_servers(file)
    assert str(missing.value) == (
        f"{file}: server 'told': set the environment variable INPUT_MAP_KEY (its input 'map-key', the key of the map), "
        "which its entry asks for."
    )
    monkeypatch.setenv("INPUT_MAP_KEY", KEY)
    specs = from_mcp_servers(file)
    assert (specs["wiki"].sse, specs["wiki"].headers) == (True, {"X-Key": "none"})
    assert KEY in server_secrets(specs["told"], {}) and KEY not in repr(specs)

    async def ask(pool):
        async with await pool.lease(["told"]) as lease:
            return (await lease.call("told", "told", {})).content

    with Pool({"told": specs["told"]}) as pool:
        assert run_sync(ask, pool) == f"{tmp_path} [redacted] m yes"


def test_each_clients_file_is_read(home, monkeypatch):
    monkeypatch.setenv("DESK_KEY", "x")
    found = {}
    for place in FILES:
        if place != ".config/Code/User/settings.json":
            found |= from_mcp_servers(home / place)
    assert sorted(found) == ["cline", "desk", "docs", "far", "notes", "old", "sqlite", "told", "zed"]
    assert (found["old"].sse, found["old"].timeout, found["far"].url) == (True, 5.0, "https://far.example/mcp")
    assert (found["docs"].command, found["docs"].args, found["docs"].start_timeout) == ("npx", ["-y", "docs-mcp"], 20)
    with pytest.raises(SpecError, match="an object called mcpServers should hold the servers"):
        from_mcp_servers(home / ".config/Code/User/settings.json")


def test_the_registrys_description_is_read(tmp_path, monkeypatch):
    described = {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": "io.github.example/weather",
        "version": "0.5.0",
        "packages": [
            {"registryType": "mcpb", "identifier": "https://x.example/x.mcpb", "transport": {"type": "stdio"}},
            {
                "registryType": "pypi",
                "identifier": "weather-mcp",
                "version": "0.5.0",
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
                "packageArguments": [{"type": "positional", "valueHint": "city", "isRequired": True}],
                "environmentVariables": [{"name": "WEATHER_KEY", "isRequired": True, "isSecret": True}],
            },
        ],
        "remotes": [{"type": "streamable-http", "url": "https://weather.example/mcp"}],
    }
    (file := tmp_path / "server.json").write_text(json.dumps({"server": described, "_meta": {}}))
    with pytest.raises(SpecError, match="set the environment variables INPUT_CITY, WEATHER_KEY, which its entry asks"):
        from_mcp_servers(file)
    monkeypatch.setenv("WEATHER_KEY", KEY)
    monkeypatch.setenv("INPUT_CITY", "Ulm")
    [spec] = from_mcp_servers(file).values()
    assert (spec.name, spec.command) == ("weather", "uvx")
    assert spec.args == ["--from", "weather-mcp==0.5.0", "weather-mcp", "Ulm"] and spec.env == {"WEATHER_KEY": KEY}
    assert KEY in server_secrets(spec, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    {
        '{"mcpServers": {"s": {"command": "a"}': "mcp.json: the server file is not JSON (Expecting ',' delimiter",
        '{"mcpServers": {"s": {"comand": "a"}}}': "mcp.json: server 's': comand: there is no such field; did you mean",
        '{"mcpServers": {"s": {"type": "sse", "command": "a"}}}': "mcp.json: server 's': sse belongs to a url",
        '{"mcpServers": {"s": {"command": "a", "envFile": "no.env"}}}': "server 's': envFile: there is no file no.env",
        '{"servers": {"s": {"command": "${command:pick}"}}}': "mcp.json: server 's': ${command:pick} is not understood",
        '{"packages": [], "name": "a/s"}': "mcp.json: server 's': none of its packages (none) is one of npm, pypi",
    }.items(),
)
def test_a_mistake_is_one_sentence_with_file_and_entry(tmp_path, monkeypatch, text, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mcp.json").write_text(text)
    with pytest.raises(SpecError) as refused:
        from_mcp_servers("mcp.json")
    assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_the_doctor_shows_the_files_and_starts_nothing(home):
    script = (
        "from mcp_grpo.doctor import _look_at_client_files as look\n"
        "for f in look(): print(f.state, f.name, '|', f.text)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    lines = dict(line.split(" | ") for line in done.stdout.splitlines())
    assert lines["ok Cursor, told"] == "told --token [hidden]" and "hidden-one" not in done.stdout + done.stderr
    assert lines["note Claude Desktop, desk"] == "desk; set DESK_KEY first"
    assert lines["ok Gemini CLI, old"] == "https://old.example/sse (SSE)"
    assert lines["ok VS Code"] == f"{home}/.config/Code/User/settings.json names no servers"
    assert f"names 1 server; to open them: mcp-grpo doctor --servers {home}/.cursor/mcp.json" in lines["ok Cursor"]
    shown = {name.partition(", ")[2] for name in lines}
    assert shown == {"", "cline", "desk", "docs", "far", "notes", "old", "sqlite", "told", "zed"}


@pytest.mark.parametrize("file", configurations.FILES, ids=lambda file: file.client)
def test_a_file_of_a_client_is_read_and_tells_no_secret(file):
    wrong, told = configurations.read(file)
    assert not wrong and not configurations.leaked(told), (wrong, told)
    assert set(file.kept) <= {configurations.S[i] for i in configurations.leaked(str(file))}  # they would be found


def test_a_server_of_a_file_that_tells_its_secrets_is_redacted():
    [file, *_] = [file for file in configurations.FILES if "told.py" in file.beside]
    wrong, told = configurations.read(file, opened=True)
    assert not wrong and not configurations.leaked(told), (wrong, told)
