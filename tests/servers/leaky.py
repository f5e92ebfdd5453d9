"""Programs that do what they can to let secrets out: results, refusals, last words, exceptions, logs, tapes.

`run` starts one in a folder with ten secrets planted, `run_unforeseen` one with secrets under names and in places that
no list of names foresees, and `train` the main job on servers that tell theirs; `found` looks for them in all that was
written.
"""

import asyncio, base64, json, logging, os, random, re, secrets, string, subprocess, sys, traceback
from pathlib import Path

import teller

HERE = Path(__file__).parent
PLANTED = {  # where each one is planted; "%" is its heart
    "environment": {
        "OPENAI_API_KEY": "sk-%",
        "PLANTED_TOKEN": 'quo"ted/%+=',
        "DATABASE_URL": "postgres://me:%@host/db",
    },
    ".env": {"FMP_API_KEY": "%", "SLACK_BOT_TOKEN": "xoxb-%"},
    "server environment": {"SERVER_SECRET": "%", "SERVER_URL": "https://host/path?api_key=%"},
    "server arguments": {"--token": "%"},
    "tool arguments": {"ARGUMENT_PASSWORD": "%"},
    "results": {"registered by hand": "by-hand-%"},
}

UNFORESEEN = {  # the same; "~" is a heart without digits, "^" a heart in base64
    "env": {
        "OPENAPI_MCP_HEADERS": '{"Authorization": "Bearer %", "Notion-Version": "2022-06-28"}',
        "MCP_HEADERS": '{"X-Thing": "~"}',
        "REDIS_PWD": "~",
        "GITHUB_PAT": "ghp_%",
        "GITLAB_PERSONAL": "glpat-~",
        "DATABASE_URL": "postgres://me:%@host/db",
        "MONGO": "mongodb+srv://me:~@a.example.org,b.example.org/books?retryWrites=true",
        "JDBC": "jdbc:sqlserver://db:1433;databaseName=books;user=me;password=~",
        "AZURE_STORAGE": "DefaultEndpointsProtocol=https;AccountName=books;AccountKey=%;EndpointSuffix=core.windows.net",  # noqa: E501
        "MSSQL": "Server=db;User Id=me;Password=~;Database=books",
        "SLACK_HOOK": "https://hooks.slack.com/services/T000/B000/%",
        "TELEGRAM": "https://api.telegram.org/bot1234567:%/sendMessage",
        "SENTRY": "https://%@sentry.example.org/1",
        "QUOTED": "quo\"ted/&<%>'",
        "JIRA_LOGIN": "me@example.org:%",
        "GIT_REMOTE": "https://~@git.example.org/books.git",
        "BASIC": "Basic ^",
        "COOKIES": "session=%; theme=dark",
        "CERTIFICATE": "-----BEGIN-----\n%\n-----END-----",
        "PHRASE": "~",
        "LICENCE": "%",
        "WEATHER_APPID": "%",
        "REGIONAL": "eu-west:%",
        "UNICODE": "pässwört-~",
    },
    "secrets": {"MODE": "~~"},
    "pass_env": {"PASSED_ALONG": "~", "N8N": "https://n8n.example.org/webhook/%"},
    "arguments": {
        "positional": "%",
        "--dsn": "redis://:%@cache:6379/0",
        "--header": "X-Auth: ~",
        "--connect=": "Endpoint=sb://bus;SharedAccessKey=%",
        "-e": "SOME_PAT=%",
    },
    "headers": {"X-Auth": "~", "X-Tenant-Access": "%", "Cookie": "sid=%", "Proxy-Authorization": "Token ~"},
    "address": {"user": "%", "path": "%", "query": "~"},
    "options": {"connection": "amqp://me:~@queue/books", "licence": "%"},
    "process": {"TELL_ORG_PAT": "~", "TELL_ID": "%"},
}


def heart(marker: str) -> str:
    """A new secret: hexadecimal digits, three words, or (for ~~) one. Digits alone could be any number, and letters
    before digits a name."""
    word = lambda length: "".join(random.choices(string.ascii_lowercase, k=length))
    if marker in "%^":
        return next(new for new in iter(lambda: secrets.token_hex(8), "") if re.search("[0-9][a-f].*[0-9][a-f]", new))
    return word(11) if marker == "~~" else "-".join(word(6) for _ in range(3))


def plant(table: dict[str, dict[str, str]]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    "The hearts by place and name, and the table with the hearts in it."
    hearts, values = {}, {}
    for where, group in table.items():
        values[where] = {}
        for name, text in group.items():
            marker = next(marker for marker in ("~~", "~", "^", "%") if marker in text)
            new = hearts[f"{where} {name}"] = heart(marker)
            values[where][name] = text.replace(
                marker, base64.b64encode(f"me:{new}".encode()).decode() if marker == "^" else new
            )
    return hearts, values


def tellers(values: dict[str, dict[str, str]], port: int) -> dict[str, dict]:
    """Server entries that are given these secrets, one over each transport; their arguments are those of teller.py, or
    of spill.py after its first two."""
    arguments = []
    for name, value in values["arguments"].items():
        arguments += [value] if name == "positional" else [name + value] if name.endswith("=") else [name, value]
    address = values["address"]
    url = f"http://me:{address['user']}@127.0.0.1:{port}/hook/{address['path']}/mcp?appid={address['query']}"
    return {
        "stdio": {
            "args": arguments,
            "env": values["env"] | values["secrets"],
            "pass_env": list(values["pass_env"]),
            "secrets": list(values["secrets"]),
        },
        "http": {"url": url, "headers": values["headers"]},
        "memory": {"options": values.get("options", {})},
    }


def run_unforeseen(folder: Path, level: str = "DEBUG") -> dict[str, str]:
    "Run the program with unforeseen secrets in `folder`; their hearts."
    hearts, values = plant(UNFORESEEN)
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        command = [sys.executable, HERE / "leaky.py", level]
        program = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | values["pass_env"] | values["process"],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
        )
        program.communicate(json.dumps(values))
    if program.returncode:
        raise RuntimeError(f"{HERE.name}/leaky.py failed; see {folder}/stderr")
    return hearts


def run(folder: Path) -> dict[str, str]:
    "Run the program in `folder`; the hearts of the secrets by name."
    hearts = {name: secrets.token_hex(8) for group in PLANTED.values() for name in group}
    values = {
        where: {name: value.replace("%", hearts[name]) for name, value in group.items()}
        for where, group in PLANTED.items()
    }
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in values[".env"].items()))
    environment = os.environ | values["environment"] | values["tool arguments"]
    with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
        program = subprocess.Popen(
            [sys.executable, HERE / "leaky.py"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
        )
        program.communicate(json.dumps(values))
    if program.returncode:
        raise RuntimeError(f"{HERE.name}/leaky.py failed; see {folder}/stderr")
    return hearts


def train(folder: Path, overrides: str, level: str = "DEBUG") -> dict[str, str]:
    "Run the main job in `folder` on servers that tell the unforeseen secrets, one of which is in `.env`; their hearts."
    hearts, values = plant(
        {where: group for where, group in UNFORESEEN.items() if where not in ("options", "process")}
    )  # no server in memory
    root = HERE.parents[1]
    names = list(values["pass_env"])
    (folder / ".env").write_text("".join(f"{name}={values['pass_env'].pop(name)}\n" for name in names[:1]))
    python = {"PYTHONPATH": str(root)}
    spill, environment = [sys.executable, str(HERE / "spill.py")], os.environ | values["pass_env"]
    web = subprocess.Popen(
        [*spill, "fmp", "--http"], env=os.environ | python, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    entries = tellers(values | {"pass_env": dict.fromkeys(names)}, int(web.stdout.readline()))
    given = entries["stdio"] | {"command": spill[0], "env": python | entries["stdio"]["env"]}
    servers = {
        "fmp": entries["http"] | {"isolation": "shared"},
        "polygon": given | {"args": [spill[1], "polygon", *given["args"]], "isolation": "shared"},
        "slack": given | {"args": [spill[1], "slack", *given["args"]]},
    }
    for entry in servers.values():  # what they tell beside their results is promised by no schema
        entry["output_schema"] = "ignore"
    (folder / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    settings = f"servers.names=[],servers.file={folder}/servers.json,servers.tape={folder}/tape.sqlite,servers.tape.mode=record,data.heldout={root}/data/processed/validation.json,{overrides}"  # noqa: E501
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(root / "experiments/train.ipynb"),
        str(folder / "train.ipynb"),
        "--no-progress-bar",
        "--cwd",
        str(folder),
        "-p",
        "mode",
        "cpu",
        "-r",
        "run",
        "spill",
        "-p",
        "tasks",
        str(root / "data/processed/train.json"),
        "-r",
        "overrides",
        settings,
    ]
    (startup := folder / ".ipython/profile_default/startup").mkdir(parents=True)  # what a kernel runs first
    (startup / "log.py").write_text(
        f"import logging\nlogging.basicConfig(filename={str(folder / 'log')!r}, level={level!r})\n"
    )
    environment["IPYTHONDIR"] = str(folder / ".ipython")
    try:
        with open(folder / "stdout", "w") as out, open(folder / "stderr", "w") as err:
            subprocess.run(command, env=environment, stdout=out, stderr=err, check=True)
    finally:
        web.kill()
    from tokenizers import Tokenizer

    results, out = folder / "outputs/spill", folder / "trajectories.txt"  # the trajectories as text
    decode = Tokenizer.from_file(str(results / "model/tokenizer.json")).decode
    out.write_text(
        "\n".join(
            decode(json.loads(line)["ids"], skip_special_tokens=False) for line in open(results / "trajectories.jsonl")
        )
    )
    return hearts


def spellings(heart: str) -> list[bytes]:
    "How a heart may stand in a file: as it is, in hexadecimal digits, in base64 after 0, 1 and 2 other characters."
    inside = [
        base64.b64encode(b"x" * before + heart.encode()).decode().rstrip("=")[(0, 2, 3)[before] : -2]
        for before in range(3)
    ]
    return [
        text.encode()
        for spelling in (heart, heart.encode().hex(), *inside)
        for text in {spelling, spelling.upper() if spelling == heart else spelling}
    ]


def found(folder: Path, hearts: dict[str, str]) -> list[str]:
    "Which secrets stand in which files, a .env and the server file left aside."
    files = [
        path for path in sorted(folder.glob("**/*")) if path.is_file() and path.name not in (".env", "servers.json")
    ]
    contents = {path: path.read_bytes() for path in files}
    return [
        f"{name} in {path.relative_to(folder)}"
        for path in files
        for name, heart in hearts.items()
        if any(spelling in contents[path] for spelling in spellings(heart))
    ]


async def main(values: dict):
    from fault_table import faulty

    from mcp_grpo.client.hardening.secrets import register_secret
    from mcp_grpo.client.pool import Pool
    from mcp_grpo.client.spec import ServerSpec
    from mcp_grpo.client.tape import Tape
    from mcp_grpo.config import load_dotenv

    logging.basicConfig(filename="log", level=logging.DEBUG)
    load_dotenv()
    register_secret(by_hand := values["results"]["registered by hand"])
    everything = {name: value for group in values.values() for name, value in group.items()}
    given = dict(env=values["server environment"], pass_env=[*values["environment"], *values[".env"]])
    arguments = [word for pair in values["server arguments"].items() for word in pair]
    dies = ServerSpec(
        "dies",
        command=sys.executable,
        args=["-c", "import os, sys; sys.exit(str(dict(os.environ)))", *arguments],
        **given,
    )
    with Tape("tape.sqlite", "record") as tape:
        async with Pool({"faulty": faulty(*arguments, **given), "dies": dies}, tape) as pool:
            async with await pool.lease(["faulty"]) as lease:
                calls = [
                    ("surroundings", {}),
                    ("ok", {"text": by_hand}),
                    ("ok", {"wrong": everything}),
                    ("ok", everything),
                    ("ok", {"text": 5, **everything}),
                ]
                calls += [("env", {"name": name}) for name in everything] + [
                    ("ok", {"text": f"a {value} b"}) for value in everything.values()
                ]
                for call in [*calls, ("no such tool", everything), ("crash", {}), ("ok", {"text": "after"})]:
                    result = await lease.call("faulty", *call)
                    print(result)
                    logging.info("%s", result)
                print(lease, vars(lease), pool.stats())
            try:
                await pool.lease(["dies"])
            except Exception as e:
                print(repr(e), "".join(traceback.format_exception(e)))
        print(tape, tape.calls(), tape._repr_html_())
        tape.export("tape.jsonl")


async def tell_all(values: dict, level: str):
    from mcp_grpo.client.pool import Pool
    from mcp_grpo.client.session import SessionError
    from mcp_grpo.client.spec import ServerSpec
    from mcp_grpo.client.tape import Tape

    logging.basicConfig(filename="log", level=level)
    web = subprocess.Popen(
        [sys.executable, HERE / "teller.py", "--http"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    entries = tellers(values, int(web.stdout.readline()))
    entries["stdio"] |= {"command": sys.executable, "args": [str(HERE / "teller.py"), *entries["stdio"]["args"]]}
    entries["memory"]["server"] = "teller:make_server"
    entries["unmade"] = entries["memory"] | {"server": "teller:refuses_to_be_made"}
    entries["dies"] = entries["stdio"] | {
        "args": ["-c", "import os, sys; sys.exit(str(sys.argv) + str(os.environ))", *entries["stdio"]["args"][1:]]
    }
    entries["gone"] = {"url": re.sub(r":\d+/", ":9/", entries["http"]["url"]), "headers": entries["http"]["headers"]}
    specs = {name: ServerSpec(name, timeout=20, **entry) for name, entry in entries.items()}
    print(specs)
    with Tape("tape.sqlite", "record") as tape:
        async with Pool(specs, tape) as pool:
            for name in specs:
                try:
                    async with await pool.lease([name]) as lease:
                        print(lease.tools(name), pool.instructions())
                        calls = [("tell", {"way": way}) for way in teller.WAYS] + [
                            ("tell", {"way": value}) for group in values.values() for value in group.values()
                        ]
                        calls += [(tool, {}) for tool in ("refuse", "log", "missing", "fail", "tell", "crash")]
                        for call in calls:
                            result = await lease.call(name, *call)
                            print(result)
                            logging.info("%s", result)
                except SessionError as e:
                    print(repr(e), "".join(traceback.format_exception(e)))
        print(tape, tape.calls(), tape._repr_html_())
        tape.export("tape.jsonl")
    web.kill()


if __name__ == "__main__":
    asyncio.run(tell_all(json.load(sys.stdin), sys.argv[1]) if sys.argv[1:] else main(json.load(sys.stdin)))
