"""A small server of the Tinker API: it samples from and trains a real LoRA adapter on a small model, one request after
the other. It stands in for a cloud that costs money, and for SkyRL's server, which compiles for minutes."""

import asyncio
import io
import itertools
import json
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as pb
from transformers import AutoModelForCausalLM

from mcp_grpo.model.policy import Policy, add_lora

NUMBERS = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}


def sample_bytes(tokens: list[int], logprobs: list[float], stopped: bool, of_prompt: list[float]) -> bytes:
    "Return a sample as the client reads it; the first token of a prompt has no logprob."
    sequence = pb.SampledSequence(
        stop_reason=pb.STOP_REASON_STOP if stopped else pb.STOP_REASON_LENGTH,
        tokens=np.asarray(tokens, np.int32).tobytes(),
        logprobs=np.asarray(logprobs, np.float32).tobytes(),
    )
    prompt = np.asarray([np.nan, *of_prompt], np.float32).tobytes() if of_prompt else b""
    return pb.SampleResponse(sequences=[sequence], prompt_logprobs=prompt).SerializeToString()


def pass_bytes(logprobs: list[np.ndarray]) -> bytes:
    "Return the logprobs of a forward pass as the client reads them."
    proto = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    record = proto.loss_fn_outputs.add(num_datums=len(logprobs))
    ends = np.cumsum([0, *(row.nbytes for row in logprobs)]).astype(np.int64).tobytes()
    data = b"".join(row.tobytes() for row in logprobs)
    record.fields["logprobs"].CopyFrom(pb.BatchedTensor(data=data, offsets=ends, dtype=pb.DTYPE_FLOAT32))
    return proto.SerializeToString()


def token_loss(name: str, options: dict, logp: torch.Tensor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    "Return the loss of each token, as the API defines it."
    if name == "cross_entropy":
        return -logp * given["weights"]
    ratio, advantage = (logp - given["logprobs"]).exp(), given["advantages"]
    if name == "importance_sampling":
        return -ratio * advantage
    bounded = ratio.clamp(options["clip_low_threshold"], options["clip_high_threshold"])
    return (
        -torch.minimum(ratio * advantage, bounded * advantage)
        if name == "ppo"
        else -bounded.detach() * advantage * logp
    )


class Adapter:
    "One adapter under training: its weights, their gradients, and an optimizer."

    def __init__(self, weights: dict[str, torch.Tensor]):
        self.weights = {name: tensor.clone().requires_grad_() for name, tensor in weights.items()}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=0.0, weight_decay=0.0)
        self.rows, self.used = 0, False

    def state(self) -> tuple[dict, dict]:
        "Copy the weights and the optimizer's state."
        return {name: p.detach().clone() for name, p in self.weights.items()}, copied(self.optimizer.state_dict())

    def load(self, weights: dict, state: dict) -> None:
        for name, p in self.weights.items():
            p.data.copy_(weights[name])
        self.optimizer.load_state_dict(copied(state))


def copied(state: dict) -> dict:
    "Copy the state of an optimizer."
    kept = {i: {name: value.clone() for name, value in values.items()} for i, values in state["state"].items()}
    return {"state": kept, "param_groups": state["param_groups"]}


class Twin:
    "The server, in a thread of this process."

    def __init__(
        self,
        model: str | Path,
        rank: int = 16,
        averages: bool = False,  # whether a loss is averaged over the tokens of a row and over the rows, as by SkyRL
    ):
        self.policy = Policy(add_lora(AutoModelForCausalLM.from_pretrained(model).float().eval(), rank, 32))
        self.name, self.rank, self.averages = str(model), rank, averages
        self.untrained = {name: tensor.clone() for name, tensor in self.policy.tensors().items()}
        self.adapters: dict[str, Adapter] = {}  # id of a model
        self.saved: dict[str, tuple[dict, dict]] = {}  # address -> what `Adapter.state` returned
        self.samplers: dict[str, str] = {}  # sampling session -> address; empty: the base model
        self.results: dict[str, bytes | dict] = {}  # number of a request -> its result
        self.passes: list[tuple[str, dict, int]] = []  # loss, options and rows of every pass with a gradient
        self.gradient: dict[str, torch.Tensor] = {}  # of the last update, before it was clipped
        self.stale, self.refusal, self.slow = False, "", 0.0  # new samplers are old | an error for all | seconds
        self.numbers = itertools.count(1)
        app = Starlette(routes=[Route("/api/v1/{what:path}", self.answer, methods=["GET", "POST"])])
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        "Stop serving, and close the connections."
        self.server.force_exit = self.server.should_exit = True
        self.thread.join()

    async def answer(self, request: Request) -> Response:
        "Answer a request. What takes long is computed at once, and its result is kept for `retrieve_future`."
        what, body = request.path_params["what"], await request.body()
        if what == "retrieve_future":
            await asyncio.sleep(self.slow)
            found = self.results[json.loads(body)["request_id"]]
            return (
                Response(found, media_type="application/x-protobuf")
                if isinstance(found, bytes)
                else JSONResponse(found)
            )
        if what.endswith("/archive"):
            path, forever = "/".join(what.split("/")[1:-1]), {"Expires": "Thu, 01 Jan 2099 00:00:00 GMT"}
            return RedirectResponse(f"{self.url}/api/v1/download/{path}", 302, forever)
        if what.startswith("download/"):
            run, _, rest = what.removeprefix("download/").partition("/checkpoints/")
            return Response(self.archive(f"tinker://{run}/{rest}"))
        handler = getattr(self, what.replace("/", "_"), None)
        if self.refusal or handler is None:
            return JSONResponse({"detail": self.refusal or f"there is no {what}"}, 400 if handler else 404)
        try:
            found = handler(body if what == "forward_backward" else json.loads(body or "{}"))
        except LookupError as error:
            return JSONResponse({"detail": str(error)}, 404)
        if what not in ("asample", "forward_backward", "optim_step", "create_model") and "weights" not in what:
            return JSONResponse(found)
        number = str(next(self.numbers))
        self.results[number] = found
        return JSONResponse({"request_id": number, "future_id": number, "status": "pending"})

    def healthz(self, given: dict) -> dict:
        return {"status": "ok"}

    def client_config(self, given: dict) -> dict:
        return {"use_pyqwest_transport": False}

    def create_session(self, given: dict) -> dict:
        return {"session_id": f"session_{next(self.numbers)}"}

    def session_heartbeat(self, given: dict) -> dict:
        return {}

    def get_server_capabilities(self, given: dict) -> dict:
        return {"supported_models": [{"model_name": self.name}]}

    def create_sampling_session(self, given: dict) -> dict:
        path, session = given.get("model_path") or "", f"sampling_{next(self.numbers)}"
        if path and path not in self.saved:
            raise LookupError(f"Checkpoint not found: {path}")
        self.samplers[session] = [*self.samplers.values()][-1] if self.stale else path
        return {"sampling_session_id": session}

    def create_model(self, given: dict) -> dict:
        if given["lora_config"]["rank"] != self.rank:
            raise LookupError(f"LoRA rank must be {self.rank}")
        name = f"model_{next(self.numbers)}"
        self.adapters[name] = Adapter(self.untrained)
        return {"model_id": name, "type": "create_model"}

    def logprobs(self, weights: dict, ids: list[int]) -> torch.Tensor:
        "Return the logprob of every token but the first under an adapter."
        self.policy.write(weights)
        logits = self.policy.model(torch.tensor([ids[:-1]])).logits[0].float()
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    @torch.no_grad()
    def asample(self, given: dict) -> bytes:
        ids, wanted = given["prompt"]["chunks"][0]["tokens"], given["sampling_params"]
        path, stop = self.samplers[given["sampling_session_id"]], set(wanted.get("stop") or ())
        weights = self.saved[path][0] if path else self.untrained
        of_prompt = self.logprobs(weights, ids).tolist() if given.get("prompt_logprobs") else []
        self.policy.write(weights)
        generator = torch.Generator().manual_seed(wanted.get("seed") or 0)
        tokens, logprobs, fed, cache = [], [], torch.tensor([ids]), None
        while len(tokens) < wanted["max_tokens"] and not stop & set(tokens[-1:]):
            out = self.policy.model(fed, past_key_values=cache, use_cache=True)
            cache, logp = out.past_key_values, out.logits[0, -1].float().log_softmax(-1)
            heat = wanted.get("temperature", 1)
            token = torch.multinomial((logp / heat).softmax(-1), 1, generator=generator)[0] if heat else logp.argmax()
            tokens.append(int(token))
            logprobs.append(float(logp[token]))
            fed = token.reshape(1, 1)
        return sample_bytes(tokens, logprobs, bool(stop & set(tokens[-1:])), of_prompt)

    def forward_backward(self, body: bytes) -> bytes:
        message = pb.ForwardBackwardRequest.FromString(body)
        adapter, options, found = self.adapters[message.model_id], dict(message.loss_fn_config), []
        adapter.used = True
        if not message.forward_only:
            self.passes.append((message.loss_fn, options, len(message.data)))
        for datum in message.data:
            tokens = np.frombuffer(datum.model_input[0].encoded_text.tokens, np.int32).tolist()
            given = {
                name: torch.from_numpy(np.frombuffer(tensor.dense, NUMBERS[tensor.dtype]).copy())
                for name, tensor in datum.loss_fn_inputs.items()
            }
            self.policy.model.zero_grad()
            with torch.set_grad_enabled(not message.forward_only):
                logp = self.logprobs(adapter.weights, [*tokens, int(given["target_tokens"][-1])])
            if not message.forward_only:
                loss = token_loss(message.loss_fn, options, logp, given)
                (loss.mean() if self.averages else loss.sum()).backward()
                for name, p in self.policy.trainable().items():
                    mine = adapter.weights[name]
                    mine.grad = p.grad.clone() if mine.grad is None else mine.grad + p.grad
                adapter.rows += 1
            found.append(logp.detach().numpy())
        return pass_bytes(found)

    def optim_step(self, given: dict) -> dict:
        adapter, asked = self.adapters[given["model_id"]], given["adam_params"]
        for group in adapter.optimizer.param_groups:
            group.update(lr=asked["learning_rate"], betas=(asked["beta1"], asked["beta2"]), eps=asked["eps"])
        for p in adapter.weights.values():
            p.grad /= adapter.rows if self.averages else 1
        self.gradient = {name: p.grad.clone() for name, p in adapter.weights.items()}
        limit = asked["grad_clip_norm"] or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(adapter.weights.values(), limit).item()
        adapter.optimizer.step()
        adapter.optimizer.zero_grad()
        adapter.rows = 0
        return {"metrics": {"twin/grad_norm": norm}}

    def save_weights(self, given: dict) -> dict:
        path = f"tinker://{given['model_id']}/weights/{given['path']}"
        self.saved[path] = self.adapters[given["model_id"]].state()
        return {"path": path, "type": "save_weights"}

    def save_weights_for_sampler(self, given: dict) -> dict:
        path = f"tinker://{given['model_id']}/sampler_weights/{given['path']}"
        self.saved[path] = self.adapters[given["model_id"]].state()
        return {"path": path, "type": "save_weights_for_sampler"}

    def load_weights(self, given: dict) -> dict:
        adapter = self.adapters[given["model_id"]]
        if adapter.used or given["path"] not in self.saved:
            raise LookupError(
                "LoadWeights is not permitted" if adapter.used else f"Checkpoint not found: {given['path']}"
            )
        adapter.load(*self.saved[given["path"]])
        return {"type": "load_weights", "path": given["path"]}

    def archive(self, path: str) -> bytes:
        "Return an adapter as an archive of a peft folder."
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w:gz") as tar:
            self.policy.write(self.saved[path][0])
            self.policy.save_adapter(folder)
            for file in sorted(Path(folder).glob("adapter_*")):
                tar.add(file, file.name)
        return packed.getvalue()
