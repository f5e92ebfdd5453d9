"""A device that is not the processor, to try on any machine that the learner and the engine hf never mix two devices.

`python tests/second_device.py` plays the same work on the processor and on the device `twin`, in a process of its own
because torch takes only one such device, and prints as JSON how far the results are apart, and how often the device was
launched and waited for. A twin tensor is a tensor of the processor that says that it lies elsewhere: an operation on it
and on a tensor of the processor raises, as it does with CUDA. What it cannot show are kernels: how a GPU rounds, what
it allows, and its speed.
"""

import asyncio, json, tempfile
from collections import Counter
from contextlib import contextmanager

import torch
from learner_steps import group, learner, model
from ragged import ragged_work
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from mcp_grpo.aio import run_sync
from mcp_grpo.config import load_config
from mcp_grpo.model.policy import add_lora
from mcp_grpo.rollout.engine import Sampling
from mcp_grpo.rollout.hf import HFEngine
from mcp_grpo.train.checkpoint import load_checkpoint, save_checkpoint
from mcp_grpo.train.batch import make_rows
from mcp_grpo.train.warmstart import warm_up

aten = torch.ops.aten
VIEWS = {
    "view",
    "_unsafe_view",
    "reshape",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "t",
    "transpose",
    "permute",
    "expand",
    "unbind",
    "split",
    "alias",
    "detach",
    "as_strided",
    "unfold",
    "lift_fresh",
    "_reshape_alias",
    "split_with_sizes",
}
MAY_MIX = {
    aten._to_copy.default,
    aten.copy_.default,
    aten.index.Tensor,
}  # CUDA, too, copies between devices and takes indices of the processor
launches, waits = (
    Counter(),
    Counter(),
    # by operation: kernels that a GPU would run, and moments in which the processor would wait for them; an upload
    # waits
    # for what was queued before it
)


class Device:
    "What torch asks of a device's module."

    @staticmethod
    def is_initialized():
        return True

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(seed):
        pass

    @staticmethod
    def get_amp_supported_dtype():
        return [torch.bfloat16, torch.float16]


class Twin(torch.Tensor):
    "A tensor of the processor, `held`, that says that it lies on the device `twin`."

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device="twin:0",
        )

    def __init__(self, held):
        self.held = held

    def __tensor_flatten__(self):
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner, *shape):
        return Twin(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return carry_out(operation, args, kwargs or {})

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        torch.Tensor.data.__set__(self, value)
        self.held = value.held

    def storage(self):
        return self.held.storage()  # safetensors asks where it lies

    def untyped_storage(self):
        return self.held.untyped_storage()

    def tolist(self):
        waits["tolist"] += 1
        return self.held.tolist()


class Carrying(TorchDispatchMode):
    "Inside, tensors can be made on the twin."

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return carry_out(operation, args, kwargs or {})


def is_twin(device) -> bool:
    return device is not None and torch.device(device).type == "twin"


def carry_out(operation, args: tuple, kwargs: dict):
    "Run an operation on what twin tensors hold; `RuntimeError` if it mixes devices."
    if torch.is_inference_mode_enabled():  # where torch leaves it to the device to take composed operations apart
        with Carrying():
            out = operation.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    twins = [x for x in tensors if isinstance(x, Twin)]
    if twins and operation not in MAY_MIX and any(x.dim() for x in tensors if not isinstance(x, Twin)):
        raise RuntimeError(
            f"{operation} is given tensors of twin and of the processor, of the shapes "
            f"{[tuple(x.shape) for x in tensors]}."
        )
    there = is_twin(kwargs["device"]) if kwargs.get("device") is not None else bool(twins)
    if operation is aten.copy_.default:
        there = isinstance(args[0], Twin)
    name = operation.overloadpacket.__name__
    if there and name not in VIEWS:
        launches[name] += 1
    boolean = operation is aten.index.Tensor and any(x.dtype == torch.bool for x in tensors)
    if twins and (name == "nonzero" or boolean or not there):
        waits[name] += 1
    if there and not twins and operation is aten._to_copy.default:
        waits["upload"] += 1
    given, named = tree_map_only(
        Twin,
        lambda x: x.held,
        (args, {**kwargs, **{k: v for k, v in (("device", "cpu"), ("pin_memory", False)) if k in kwargs}}),
    )
    out, known = operation(*given, **named), {id(x.held): x for x in twins}
    if twins and not isinstance(out, (torch.Tensor, tuple, list, type(None))):
        waits[name] += 1
    return tree_map_only(torch.Tensor, lambda x: known.get(id(x)) if id(x) in known else Twin(x) if there else x, out)


def copy_from(source, target, non_blocking=False):
    (target.held if isinstance(target, Twin) else target).copy_(source.held if isinstance(source, Twin) else source)
    return target


_setup_privateuseone_for_python_backend("twin", backend_module=Device)
kernels, fallbacks = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
kernels.impl(
    "empty_strided",
    lambda size, stride, dtype=None, **about: Twin(torch.empty_strided(size, stride, dtype=dtype)),
    "PrivateUse1",
)
kernels.impl(
    "empty.memory_format", lambda size, dtype=None, **about: Twin(torch.empty(size, dtype=dtype)), "PrivateUse1"
)
kernels.impl("_copy_from", copy_from, "PrivateUse1")
fallbacks.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


@contextmanager
def counted():
    "Tensors can be made on the twin, and launches and waits are counted from 0."
    launches.clear(), waits.clear()
    with Carrying():
        yield


SHAPE = dict(hidden=64, layers=2, heads=4, kv=2, head_dim=16, mlp=128)
BATCH = [group(40, 4, 20, 500), group(30, 4, 10, 500)]
CASES = {  # settings of the learner
    "plain": {},
    "adapter": {"lora": True, "kl": 0.1},
    "rows": {"share": False},
    "frozen": {"kl": 0.1},
    "moving": {"kl": 0.1, "reference": {"kind": "ema", "every": 1}},
    "value head": {"advantage": "gae"},
    "checkpointing": {"gradient_checkpointing": True},
    "updates": {"micro_batch": 2, "accumulation": 2, "passes": 2},
    "penalty in the reward": {"kl": {"weight": 0.1, "place": "reward"}},
    "entropy bonus": {"entropy": 0.01},
}


def trained(device: str, lora: bool = False, share: bool = True, **settings) -> tuple:
    "A learner after two steps, and the metrics of the last one."
    torch.manual_seed(0)
    given = model(500, **SHAPE)
    ours = learner(
        (add_lora(given, 4, 8, "all-linear") if lora else given).to(device),
        autocast="none",
        optimizer="adamw_torch",
        lr=1e-4,
        **settings,
    )
    ours.share = share
    return ours, [ours.step(BATCH) for _ in range(2)][1]


def apart(ours, theirs) -> float:
    "The largest difference of their weights."
    return max((p.detach().cpu() - theirs[name].detach().cpu()).abs().max().item() for name, p in ours.items())


def compare(case: dict) -> dict:
    "A case on both devices, and a checkpoint of the second one."
    ours, metrics = trained("cpu", **case)
    with counted(), tempfile.TemporaryDirectory() as folder:
        twin, found = trained("twin", **case)
        counts = {
            "launches": sum(launches.values()) // 2,
            "uploads": waits.pop("upload", 0) // 2,
            "waits": sum(waits.values()) // 2,
        }
        save_checkpoint(folder, 2, twin.policy, twin.optimizer, reference=twin.reference)
        again, _ = trained("twin", **case)
        load_checkpoint(folder, again.policy, again.optimizer, reference=again.reference)
        resumed = apart(again.policy.trainable(), twin.policy.trainable())
        wrong = [
            name
            for name, value in metrics.items()
            if value is not None and abs(value - found[name]) > 1e-4 * max(1, abs(value))
        ]
        return {
            "apart": apart(ours.policy.trainable(), twin.policy.trainable()),
            "metrics": wrong,
            "resumed": resumed,
        } | counts


def warmed(device: str) -> list[float]:
    "The losses of a warm start."
    torch.manual_seed(0)
    cfg = load_config("cpu", train={"warmstart": 3, "autocast": "none", "optimizer": "adamw_torch"}).train
    return list(warm_up(learner(model(500, **SHAPE).to(device)).policy, sum(make_rows(BATCH, cfg, 8192), []), cfg))


def sampled(device: str, episodes: int = 8) -> tuple[dict, int]:
    "What the engine hf says in ragged episodes, and its forward passes."
    torch.manual_seed(0)
    work, found, engine = (
        ragged_work(episodes, longest=16),
        {},
        HFEngine(model(**SHAPE).eval().to(device), max_tokens=600),
    )
    if device == "twin":
        engine.thread.submit(Carrying().__enter__).result()

    async def episode(i: int):
        text = list(work[i][0])
        for turn, (budget, result) in enumerate(work[i][1]):
            said = await engine.generate(
                text,
                Sampling(0.0 if i == 1 else 1.0, budget, repetition_penalty=1.1 if i == 2 else 1.0),
                ("toy", 0, "task", i, turn),
            )
            found[i, turn] = said.ids, said.logprobs
            text += said.ids + result
        await engine.release(("toy", 0, "task", i))

    async def together():
        await asyncio.gather(*(episode(i) for i in range(episodes)))

    run_sync(together)
    return found, engine.stats().iterations


def main() -> dict:
    said = {"cases": {name: compare(case) for name, case in CASES.items()}}
    here = warmed("cpu"), sampled("cpu")
    with counted():
        try:
            torch.ones(3, device="twin") + torch.ones(3)
        except RuntimeError as e:
            said["mixed"] = str(e)
        said["warm start"] = max(abs(a - b) for a, b in zip(here[0], warmed("twin")))
    with counted():
        there, passes = sampled("twin")
    said["engine"] = {
        "same": all(here[1][0][turn][0] == ids for turn, (ids, _) in there.items()),
        "turns": len(there),
        "passes": passes,
        "launches": sum(launches.values()) / passes,
        "uploads": waits.pop("upload") / passes,
        "waits": sum(waits.values()) / passes,
    }
    return said


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
