"""A GPU that is a CPU: torch believes in a card, and its tensors live on the CPU.

What a check says to `torch.cuda`, to "cuda" as a device and to NCCL is taken by real functions of torch for the CPU and
by gloo: the check's own lines for GPUs run, with numbers that are right. It says nothing of CUDA, a driver or a card.

All sizes are a GPU's, unless CARD_SIZES=cpu; what is not computed as on a GPU is in SHORTCUTS.

Loaded by file, from within a stack's Python (`tests.support.machines.stack.spoiled`): it knows torch alone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

#: Statements after torch's import by which a process has the GPU: for `stack.spoiled`.
LOADED = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("cpu_as_gpu", {str(Path(__file__).resolve())!r})
sys.modules["cpu_as_gpu"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["cpu_as_gpu"])
sys.modules["cpu_as_gpu"].install(torch)
"""

#: cuBLAS's workspace under CUBLAS_WORKSPACE_CONFIG=:4096:8, which torch's allocator counts; its size is fixed.
WORKSPACE_BYTES = 32 * 2**20


#: What differs from a GPU, besides the numbers' last bits; docs/measurements/gpu-coverage.md lists them.
SHORTCUTS: Mapping[str, str] = {
    "timing": "work that is only timed is called once; the blocks whose time counts contain nothing",
    "steps": "the loader trains 4 steps of 200, `sustained` has 5 s of 30 for all types, bandwidth 1 block of 5",
    "same product": "a product of over 2^37 terms of the same two matrices is computed once, and copied",
    "fp16": "products, convolutions and attention of fp16 are computed in fp32 and rounded: CPUs are slow at them",
    "fp8": "`torch._scaled_mm` is a product in fp32, rounded",
    "NCCL": "NCCL is gloo, without a log or a version of its own; a replica and a mesh of GPUs are of the CPU",
    "memory": "allocated memory is that of the tensors that torch's functions return, and cuBLAS's workspace; 600 MiB "
    "are free",
    "graph": "a CUDA graph records the calls of torch's functions, and its replay calls them; nothing is compiled",
    "pinned": "pinned memory is any memory",
    "driver": "libcuda and NVML are libraries made by gcc, which report what the test says",
}
_SHORT: Mapping[str, int] = {
    "speed.milliseconds.cuda": 1,
    "loader.steps.cuda": 4,
    "sustained.seconds.cuda": 5,
    "distributed.blocks.cuda": 1,
    "distributed.speed_ms.cuda": 1,
}
#: Terms of a product that is computed once for the same two matrices.
_LARGE = 2**37
#: Of which the arithmetic in fp16 is replaced; torch.compile looks at modes, and compiles none of it.
_HALF_CHECKS = ("matmul", "amp", "transformer", "inference", "dataloader", "sustained")
_COMPILING = "torch.compile"


def install(torch: Any) -> None:
    """From here on this process has a GPU."""
    held = _Held()
    if os.environ.get("CARD_SIZES") == "cpu":
        _sizes()
    else:
        _shorten(torch)
    _card(torch, held)
    _types(torch)
    _distributed(torch)
    _Everywhere.of(torch, held).__enter__()


def _sizes() -> None:
    """What is made for a GPU's speed becomes what a CPU can do. Memory is not made smaller: its bound is on bytes."""
    sizes = importlib.import_module("envspec.conformance.bounds").SIZES
    for name in [each for each in sizes if each.endswith(".cuda") and not each.startswith("memory.")]:
        sizes[name] = sizes[f"{name.rpartition('.')[0]}.cpu"]


def _shorten(torch: Any) -> None:
    """The shortcuts that need more than a CPU's way to compute."""
    sizes = importlib.import_module("envspec.conformance.bounds").SIZES
    assert set(_SHORT) <= set(sizes)
    sizes.update(_SHORT)
    numerics: Any = importlib.import_module("envspec.conformance.numerics")

    # The work has been called once before.
    blocks = numerics._gpu_blocks
    numerics._gpu_blocks = lambda torch, _: blocks(torch, lambda: None)
    if any(each in sys.argv for each in _HALF_CHECKS):
        _half_as_float(torch)


def _half_as_float(torch: Any) -> None:
    """Arithmetic in fp16 is computed in fp32 within each phase of a check."""
    aten = torch.ops.aten
    names: tuple[str, ...] = ("mm", "addmm", "bmm", "baddbmm", "mv", "convolution", "convolution_backward")
    names += ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward")
    slow = {getattr(aten, name) for name in names if hasattr(aten, name)}
    tree_map = importlib.import_module("torch.utils._pytree").tree_map
    dispatch: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Half(dispatch):  # type: ignore[misc, unused-ignore]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = (args, kwargs or {})
            is_half = []

            def wider(value: Any) -> Any:
                if isinstance(value, torch.Tensor) and value.dtype == torch.float16:
                    is_half.append(value)
                    return value.float()
                return value

            if function.overloadpacket not in slow:
                return function(*args, **(kwargs or {}))
            args, kwargs = tree_map(wider, given)
            found = function(*args, **kwargs)
            if not is_half:
                return found
            if function.overloadpacket is getattr(aten, names[-2], None):
                # The second result is in fp32 in any case.
                return (found[0].half(), *found[1:])
            return tree_map(lambda each: each.half() if isinstance(each, torch.Tensor) else each, found)

    events: Any = importlib.import_module("envspec.conformance.events")
    phase = events.EventWriter.phase

    @contextlib.contextmanager
    def widened(writer: Any, name: str) -> Iterator[None]:
        with phase(writer, name), contextlib.nullcontext() if name == _COMPILING else Half():
            yield

    events.EventWriter.phase = widened


def _on_cpu(torch: Any, value: Any) -> Any:
    """A word for the GPU, as one for the CPU."""
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_on_cpu(torch, each) for each in value)
    return value


class _Everywhere:
    """Makes the mode that takes "cuda" out of every call of torch, and counts what is allocated."""

    @staticmethod
    def of(torch: Any, held: _Held) -> Any:
        products = _Products(torch)

        class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined, unused-ignore]
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if function is torch.device:
                    # By its name: what is made on it is what lies elsewhere.
                    return function(*args, **(kwargs or {}))
                if function is torch.Tensor.is_pinned:
                    return True
                if function is torch.Tensor.pin_memory:
                    return args[0]
                named = {key: _on_cpu(torch, each) for key, each in (kwargs or {}).items()}
                result = products.call(function, tuple(_on_cpu(torch, each) for each in args), named)
                held.see(torch, result)
                return result

        return Mode()


class _Products:
    """Computes a large product of the same two matrices once; the last one is remembered."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._products = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__}
        self._last: tuple[Any, Any] | None = None

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        if function not in self._products or not self._is_large(*args[:2]):
            return function(*args, **named)
        # The operands too: a matrix at an address that was another's before is not the same.
        of = (function, *((each.data_ptr(), each._version, each.dtype, id(each)) for each in args))
        if self._last is None or self._last[0][0] != of:
            self._last = ((of, args), function(*args, **named))
        return self._last[1].clone()

    def _is_large(self, left: Any, right: Any) -> bool:
        is_pair = all(isinstance(each, self._torch.Tensor) and each.dim() == 2 for each in (left, right))
        return is_pair and left.shape[0] * left.shape[1] * right.shape[1] > _LARGE


class _Held:
    """The bytes of the tensors that torch's functions have returned and that are still there, and the most of them."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}
        self.now = WORKSPACE_BYTES
        self.most = WORKSPACE_BYTES

    def see(self, torch: Any, result: Any) -> None:
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, torch.Tensor) and each.layout is torch.strided:
                self._add(each)

    def _add(self, tensor: Any) -> None:
        try:
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
        except (RuntimeError, NotImplementedError):
            return
        if place and place not in self._storages:
            self._storages[place] = size
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._drop, place)

    def _drop(self, place: int) -> None:
        self.now -= self._storages.pop(place, 0)

    def forget(self) -> None:
        self.most = self.now


def _card(torch: Any, held: _Held) -> None:
    """`torch.cuda`, as far as checks ask it and as torch asks it about a context that is there."""
    # What `tests.support.machines.driver` says of the card.
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = (
        range(int(os.environ.get("GPUS", "1"))) if shown is None else [int(each) for each in shown.split(",") if each]
    )
    sm = os.environ.get("CARD_SM", "90")
    cards = [
        SimpleNamespace(
            name=os.environ.get("CARD", "NVIDIA H100 80GB HBM3"),
            major=int(sm[:-1]),
            minor=int(sm[-1]),
            total_memory=int(os.environ.get("CARD_BYTES", "85899345920")),
            multi_processor_count=int(os.environ.get("CARD_UNITS", "132")),
            uuid=f"00000000-0000-0000-0000-{number + 1:012x}",
        )
        for number in numbers
    ]
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(cards),
        "can_device_access_peer": lambda one, other: one != other,
        "set_device": lambda _: None,
        "synchronize": lambda: None,
        "get_device_properties": lambda index: cards[index],
        "get_device_capability": lambda: (cards[0].major, cards[0].minor),
        "get_arch_list": lambda: os.environ.get("TORCH_CODE", "sm_80 sm_90").split(),
        "max_memory_allocated": lambda: held.most,
        "max_memory_reserved": lambda: held.most,
        "reset_peak_memory_stats": held.forget,
        "Event": _Event,
        # Two blocks of the pattern.
        "mem_get_info": lambda: (600 << 20, cards[0].total_memory),
        "empty_cache": lambda: None,
        "Stream": _Stream,
        "current_stream": _Stream,
        "stream": lambda _: contextlib.nullcontext(),
        "CUDAGraph": lambda: _graph(torch),
        "graph": lambda graph: graph,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _for_checks(answer, getattr(torch.cuda, name)))


class _Stream:
    """Work has ended when its call returns."""

    def wait_stream(self, _: _Stream) -> None:
        """At once."""


def _graph(torch: Any) -> Any:
    """A graph as a mode that records torch's functions while it is entered; a replay calls them again."""

    class Graph(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self._calls: list[tuple[Any, Any, Any, Any]] = []

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self._calls.append((function, args, kwargs or {}, result))
            return result

        def replay(self) -> None:
            for function, args, named, result in self._calls:
                result.copy_(function(*args, **named))

    return Graph()


class _Event:
    """Work has ended when its call returns: an event's time is that of its recording."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed = enable_timing
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """At once."""

    def elapsed_time(self, end: _Event) -> float:
        if not self._is_timed or not end._is_timed:
            raise RuntimeError("events without timing have no time")
        return (end._at - self._at) * 1e3


def _for_checks(answer: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """A name of `torch.cuda` that answers checks; torch's own lines hear that there is no GPU."""

    def asked(*given: Any, **named: Any) -> Any:
        is_check = sys._getframe(1).f_globals["__name__"].startswith("envspec.conformance.")
        # A class gives itself first.
        return (answer if is_check else real)(*given[isinstance(real, type) :], **named)

    # A class stays one: packages write `torch.cuda.Stream | None`.
    return type(real.__name__, (real,), {"__new__": asked}) if isinstance(real, type) else asked


def _types(torch: Any) -> None:
    """What takes a device by name and is no function that the mode sees."""
    real = torch.Generator

    class Generator(real):  # type: ignore[misc, valid-type, unused-ignore]
        def __new__(cls, device: Any = "cpu") -> Any:
            return real(device=_on_cpu(torch, device))

    torch.Generator = Generator
    for each in (torch.amp.autocast, torch.amp.GradScaler):
        each.__init__ = _renamed(torch, each.__init__)
    if not hasattr(torch, "_scaled_mm"):
        return

    def scaled(left: Any, right: Any, scale_a: Any, scale_b: Any, out_dtype: Any) -> Any:
        if right.stride() != (1, right.shape[0]):
            raise RuntimeError("mat2 must be in columns")
        return ((left.float() * scale_a) @ (right.float() * scale_b)).to(out_dtype)

    torch._scaled_mm = scaled


def _renamed(torch: Any, begin: Callable[..., None]) -> Callable[..., None]:
    def init(made: Any, device: str, **named: Any) -> None:
        begin(made, _on_cpu(torch, device), **named)

    return init


def _distributed(torch: Any) -> None:
    """NCCL is gloo; a replica and a mesh of GPUs are of the CPU."""
    changes = {
        "torch.distributed": _nccl,
        "torch.nn.parallel.distributed": _replica,
        "torch.distributed.device_mesh": _mesh,
    }
    for name, change in changes.items():
        if name in sys.modules:
            change(torch, sys.modules[name])


def _nccl(torch: Any, distributed: ModuleType) -> None:
    begin: Any = distributed.init_process_group  # type: ignore[attr-defined, unused-ignore]

    def init(backend: str, *, timeout: Any, device_id: Any = None) -> None:
        if backend == "nccl" and device_id is None:
            raise ValueError("a rank of NCCL says which device is its own")
        begin("gloo", timeout=timeout)

    distributed.init_process_group = init  # type: ignore[attr-defined, unused-ignore]


def _replica(torch: Any, parallel: ModuleType) -> None:
    made: Any = parallel.DistributedDataParallel.__init__  # type: ignore[attr-defined, unused-ignore]

    def make(replica: Any, module: Any, device_ids: Any = None, **named: Any) -> None:
        made(replica, module, **named)

    parallel.DistributedDataParallel.__init__ = make  # type: ignore[attr-defined, unused-ignore]


def _mesh(torch: Any, device_mesh: ModuleType) -> None:
    made: Any = device_mesh.init_device_mesh  # type: ignore[attr-defined, unused-ignore]
    device_mesh.init_device_mesh = lambda device, shape: made("cpu", shape)  # type: ignore[attr-defined, unused-ignore]
