"""A program that does what it can to let its secrets out: results, refusals, last words, exceptions, logs, tapes.

`run` starts it in a folder with ten secrets planted, and `train` the main job on servers that tell theirs; `found` looks for them in all that was written.
"""
import asyncio, json, logging, os, secrets, subprocess, sys, traceback
from pathlib import Path

HERE = Path(__file__).parent
PLANTED = {  # where each one is planted; "%" is its heart
    "environment": {"OPENAI_API_KEY": "sk-%", "PLANTED_TOKEN": 'quo"ted/%+=', "DATABASE_URL": "postgres://me:%@host/db"},
    ".env": {"FMP_API_KEY": "%", "SLACK_BOT_TOKEN": "xoxb-%"},
    "server environment": {"SERVER_SECRET": "%", "SERVER_URL": "https://host/path?api_key=%"},
    "server arguments": {"--token": "%"},
    "tool arguments": {"ARGUMENT_PASSWORD": "%"},
    "results": {"registered by hand": "by-hand-%"},
}


def run(folder: Path) -> dict[str, str]:
    "Run the program in `folder`; the hearts of the secrets by name."
    hearts = {name: secrets.token_hex(8) for group in PLANTED.values() for name in group}
    values = {where: {name: value.replace("%", hearts[name]) for name, value in group.items()} for where, group in PLANTED.items()}
    (folder/".env").write_text("".join(f"{name}={value}\n" for name, value in values[".env"].items()))
    environment = os.environ | values["environment"] | values["tool arguments"]
    with open(folder/"stdout", "w") as out, open(folder/"stderr", "w") as err:
        program = subprocess.Popen([sys.executable, HERE/"leaky.py"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
        program.communicate(json.dumps(values))
    if program.returncode: raise RuntimeError(f"{HERE.name}/leaky.py failed; see {folder}/stderr")
    return hearts


def train(folder: Path, overrides: str) -> dict[str, str]:
    "Run the main job in `folder`, half of its secrets in the environment and half in `.env`; their hearts."
    hearts = {f"SPILL_{i}_TOKEN": secrets.token_hex(8) for i in range(10)}
    names, root = list(hearts), HERE.parents[1]
    (folder/".env").write_text("".join(f"{name}={hearts[name]}\n" for name in names[5:]))
    servers = {name: {"command": sys.executable, "args": [str(HERE/"spill.py"), name], "pass_env": names, "env": {"PYTHONPATH": str(root)},
                      "isolation": "process" if name == "slack" else "shared"} for name in ("polygon", "fmp", "slack")}
    (folder/"servers.json").write_text(json.dumps({"mcpServers": servers}))
    settings = f"servers.names=[],servers.file={folder}/servers.json,data.heldout={root}/data/processed/validation.json,{overrides}"
    command = [sys.executable, "-m", "papermill", str(root/"experiments/train.ipynb"), str(folder/"train.ipynb"), "--no-progress-bar", "--cwd", str(folder),
               "-p", "mode", "cpu", "-r", "run", "spill", "-p", "tasks", str(root/"data/processed/train.json"), "-r", "overrides", settings]
    environment = os.environ | {name: hearts[name] for name in names[:5]}
    with open(folder/"stdout", "w") as out, open(folder/"stderr", "w") as err: subprocess.run(command, env=environment, stdout=out, stderr=err, check=True)
    return hearts


def found(folder: Path, hearts: dict[str, str]) -> list[str]:
    "Which secrets stand in which files, a .env left aside."
    files = [path for path in sorted(folder.glob("**/*")) if path.is_file() and path.name != ".env"]
    return [f"{name} in {path.relative_to(folder)}" for path in files for name, heart in hearts.items() if heart.encode() in path.read_bytes()]


async def main(values: dict):
    from fault_table import faulty

    from mcp_grpo.client.guard import register_secret
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
    dies = ServerSpec("dies", command=sys.executable, args=["-c", "import os, sys; sys.exit(str(dict(os.environ)))", *arguments], **given)
    with Tape("tape.sqlite", "record") as tape:
        async with Pool({"faulty": faulty(*arguments, **given), "dies": dies}, tape) as pool:
            async with await pool.lease(["faulty"]) as lease:
                calls = [("surroundings", {}), ("ok", {"text": by_hand}), ("ok", {"wrong": everything}), ("ok", everything), ("ok", {"text": 5, **everything})]
                calls += [("env", {"name": name}) for name in everything] + [("ok", {"text": f"a {value} b"}) for value in everything.values()]
                for call in [*calls, ("no such tool", everything), ("crash", {}), ("ok", {"text": "after"})]:
                    result = await lease.call("faulty", *call)
                    print(result)
                    logging.info("%s", result)
                print(lease, vars(lease), pool.stats())
            try: await pool.lease(["dies"])
            except Exception as e: print(repr(e), "".join(traceback.format_exception(e)))
        print(tape, tape.calls(), tape._repr_html_())
        tape.export("tape.jsonl")


if __name__ == "__main__": asyncio.run(main(json.load(sys.stdin)))
