"SkyRL's server of the Tinker API on this processor, from the environment that `make skyrl` makes."

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx2
import psutil

SKYRL = Path(__file__).resolve().parents[1] / ".servers/skyrl"
OPTIONS = {"max_lora_adapters": 4, "max_lora_rank": 16, "train_micro_batch_size": 8, "sample_max_num_sequences": 16}


def ray_processes() -> list[psutil.Process]:
    "The processes that hold the weights, if the server is given `use_ray`."
    found = [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"]]
    return [process for process in found if process.info["cmdline"][0].startswith("ray::RayJaxBackendImpl")]


@contextlib.contextmanager
def skyrl(folder: Path, model: str, **options):
    "The address of a server with a model, a folder; its log, database and checkpoints are below `folder`."
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["uv", "run", "--active", "--no-project", "--offline", "-m", "skyrl.tinker.api", "--base-model", model]
    command += ["--backend", "jax", "--backend-config", json.dumps(OPTIONS | options), "--host", "127.0.0.1", "--port"]
    command += [str(port), "--checkpoints-base", f"{folder}/kept", "--database-url", f"sqlite:///{folder}/tinker.db"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = f"{SKYRL}/bin:{os.environ['PATH']}"  # it insists on being started by uv
    environ = clean | {"VIRTUAL_ENV": str(SKYRL), "PATH": path, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    environ["JAX_COMPILATION_CACHE_DIR"] = str(SKYRL / "compiled")  # half a minute of a core per length of a text
    with open(folder / "skyrl.log", "w") as log:
        job = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert job.poll() is None, (folder / "skyrl.log").read_text()[-3000:]
            with contextlib.suppress(httpx2.HTTPError):
                httpx2.get(f"{url}/api/v1/healthz", trust_env=False).raise_for_status()
                break
            time.sleep(0.5)
        yield url
    finally:
        started = psutil.Process(job.pid).children(recursive=True)  # Ray's are in groups of their own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()
