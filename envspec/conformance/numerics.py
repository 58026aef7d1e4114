"""Tensors, precision modes, attention and compilation for the checks.

Attention is compared with its formula, computed by plain products and a softmax: that finds a kernel that is wrong in
all its forms, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import operator
import os
import re
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.conformance import cputime
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import CUBLAS, CUDNN
from envspec.conformance.results import error_chain, error_texts
from envspec.conformance.text import lines_of


def deterministic(torch: Any) -> None:
    """Use the same kernels in every run; operations without one warn. The suite sets cuBLAS's workspace."""
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def raw(tensor: Any) -> bytes:
    """A tensor's bytes by rows, without NumPy, which the stack may lack."""
    copy = tensor.detach().cpu().contiguous()
    return ctypes.string_at(copy.data_ptr(), copy.numel() * copy.element_size())


def joined_gradients(torch: Any, parameters: Iterable[Any]) -> Any:
    """The gradients of parameters as one vector in fp64."""
    return torch.cat([each.grad.detach().double().flatten() for each in parameters])


def elements(tensors: Iterable[Any]) -> int:
    """How many numbers they have in all."""
    return sum(each.numel() for each in tensors)


def relative_error(found: Any, right: Any) -> float:
    """|found - right|F / |right|F in fp64; NaN if `found` has a NaN."""
    right = right.double()
    return float((found.double() - right).norm() / right.norm())


def worst(errors: Iterable[float]) -> float:
    """The largest error; NaN if one of them is NaN, which `max` finds in the first place only."""
    return max(errors, key=lambda error: (math.isnan(error), error))


#: Odd: multiplication by it is a permutation of all words of 64 bits.
MULTIPLIER = 0x5851F42D4C957F2D


def distinct_words(torch: Any, count: int, device: str) -> Any:
    """Words of 64 bits, each with bits of its own."""
    return torch.arange(count, dtype=torch.int64, device=device) * MULTIPLIER


def wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def best_time(torch: Any, device: str, work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of a call in the shortest of several blocks of calls, after a warm-up, and the spread of the blocks.

    Disturbances only add time. On a GPU its own events are the clock, without a synchronisation between the blocks. On
    the CPU a block is one call: on a busy machine the shortest calls are the least disturbed.
    """
    work()
    wait(torch, device)
    disturbed = disturbance(device)
    seconds = _gpu_blocks(torch, work) if device == "cuda" else _cpu_calls(work)
    return min(seconds), spread(seconds, disturbed())


def _gpu_blocks(torch: Any, work: Callable[[], Any]) -> list[float]:
    """Seconds of a call in each block. The warm-up, in which clocks rise, takes the time of two blocks."""
    blocks, calls, began = SIZES["speed.blocks"], 0, time.perf_counter()
    block_s = SIZES["speed.milliseconds.cuda"] / 1e3 / blocks
    while time.perf_counter() - began < 2 * block_s:
        work()
        torch.cuda.synchronize()
        calls += 1
    calls = math.ceil(calls / 2)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
    events[0].record()
    for event in events[1:]:
        for _ in range(calls):
            work()
        event.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) / 1e3 / calls for one, other in zip(events, events[1:])]


def _cpu_calls(work: Callable[[], Any]) -> list[float]:
    """Seconds of each call: of three that are long, of more that are short."""
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < SIZES["speed.milliseconds.cpu"] / 1e3:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds


def spread(seconds: Sequence[float], disturbed: float = 0.0) -> float:
    """How well the shortest of some times is known: the distance of their median, and `disturbance`.

    If other programs use all cores, no call may be undisturbed, and the times may be equally wrong.
    """
    return statistics.median(seconds) / min(seconds) - 1 + min(1.0, disturbed)


#: Each makes torch or CUDA's libraries compute fp32 in TF32, whatever the program chose.
#: Source: torch, aten/src/ATen/Context.cpp, `allow_tf32_cublas_override`; NVIDIA, "Accelerating AI Training with NVIDIA
#: TF32 Tensor Cores". Read 2026-11.
_TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")


def tf32_hint(type_name: str) -> str:
    """What to do if fp32 is as inexact as TF32; empty if no variable requests that, and for other types."""
    found = [f"{name}={os.environ[name]}" for name in _TF32_VARIABLES if os.environ.get(name, "0") != "0"]
    if type_name != "fp32" or not found:
        return ""
    return f"unset {' and '.join(found)}: with it fp32 is computed in TF32"


#: Idle time in /proc/stat is in these units of a second.
_TICK_S = 0.01


def disturbance(device: str) -> Callable[[], float]:
    """Begin to measure how much other programs disturb this one; the result returns it, as a fraction of the time.

    It is the time that threads of this process waited for a CPU and, if they compute on the CPU, what others used of
    all CPUs, with which they share caches and often cores. 0 if the system is not Linux.
    """
    cpus = os.cpu_count() or 1

    def counters() -> tuple[float, float, float]:
        now = time.perf_counter()
        return now, cputime.total(os.getpid()).waited_s, cpus * now - _idle_s() - time.process_time()

    before = counters()

    def share() -> float:
        wall, waited, others = (now - then for now, then in zip(counters(), before))
        # A thread that had waited may have ended. Idle time is exact to a tick at each end.
        used = max(0.0, others - 2 * _TICK_S) / cpus if device == "cpu" else 0.0
        return (max(0.0, waited) + used) / wall

    return share


def _idle_s() -> float:
    """Seconds that the machine's CPUs have been idle, in all. Source: proc_stat(5), the fourth and fifth number."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        numbers = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return (int(numbers[3]) + int(numbers[4])) * _TICK_S
    # As if nothing else ran.
    return (os.cpu_count() or 1) * time.perf_counter() - time.process_time()


#: A refusal of cuBLAS leaves the device usable, though torch calls it a CUDA error.
_REFUSED = re.compile(r"CUBLAS_STATUS_(NOT_SUPPORTED|ARCH_MISMATCH|INVALID_VALUE)")
#: After these errors every further call of the process fails, or nothing can be allocated.
#: Source: CUDA runtime API, cudaError_t: "This leaves the process in an inconsistent state".
_FATAL = re.compile(
    r"CUDA error:|Triton Error \[CUDA\]|CUBLAS_STATUS_ALLOC_FAILED|out of memory|illegal memory access"
    r"|device-side assert|unspecified launch failure"
)
#: torch's messages for devices without an operation: `torch._scaled_mm is only supported on CUDA devices with compute
#: capability >= 9.0 or 8.9, or ROCm MI300+`, `CUDA BFloat16 requires compute capability >= 80`.
_NO_SUCH_OPERATION = re.compile(r"(only (supported )?(on|for)|requires|needs) .*compute capability")


@contextlib.contextmanager
def case(torch: Any, context: CheckContext, name: str) -> Iterator[None]:
    """A part of a check that costs no other part if torch or a library of CUDA refuses it.

    Its refusal is a finding `name`: `not run` if torch says that this device does not support the operation, else a
    failure.

    Raises:
        RuntimeError: memory ran out, or the process can't use the GPU any more.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        is_fatal = _FATAL.search(text) and not _REFUSED.search(text)
        # torch 2.4 has the second name only.
        if is_fatal or isinstance(error, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)):
            raise
        if _NO_SUCH_OPERATION.search(text):
            context.not_run(name, _line(error))
        else:
            context.exact(name, ok=False, detail=_line(error))


def key(torch: Any, device: str, shapes: Sequence[object]) -> str:
    """What the last bits of floats depend on: device, libraries, shapes."""
    words = [f"torch {torch.__version__}"]
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        words += [f"sm_{gpu.major}{gpu.minor}", f"{gpu.multi_processor_count} multiprocessors"]
        words += [f"cuBLAS {CUBLAS.loaded()}", f"cuDNN {CUDNN.loaded()}"]
    else:
        words += [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    return ", ".join([*words, *map(str, shapes)])


#: Types by their short names -> torch's.
TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
NO_BF16 = "bf16 needs a GPU of compute capability 8.0"


def has_bf16(torch: Any, device: str) -> bool:
    """Whether the device computes in bf16 without emulation; true for every CPU."""
    return device != "cuda" or tuple(torch.cuda.get_device_capability()) >= (8, 0)


def float_types(torch: Any, context: CheckContext) -> dict[str, Any]:
    """fp32, fp16 and bf16 -> torch's types, without bf16 if the device lacks it, which is reported."""
    dtypes = {name: getattr(torch, dtype) for name, dtype in TYPES.items()}
    if not has_bf16(torch, context.device):
        del dtypes["bf16"]
        context.not_run("bf16", NO_BF16)
    return dtypes


@dataclass(frozen=True)
class Mode:
    """A type of inputs. left, right: fp32 -> the same in this type, as `product` takes it: (M, K), (K, N) -> (M, N)."""

    name: str
    left: Callable[[Any], Any]
    right: Callable[[Any], Any]
    product: Callable[[Any, Any], Any]


def modes(torch: Any, context: CheckContext) -> list[Mode]:
    """The modes that the device runs; the others are reported as not run.

    Source of the compute capabilities: CUDA C++ programming guide, "Tensor Core Input Precisions".
    """
    casts = {name: operator.methodcaller("to", getattr(torch, dtype)) for name, dtype in TYPES.items()}
    run = [Mode(name, cast, cast, operator.matmul) for name, cast in casts.items()]
    if not context.request.cuda:
        for name in ("tf32", "fp8"):
            context.not_run(name, "no GPU is requested")
        return run
    capability = tuple(torch.cuda.get_device_capability())
    sm = "this GPU is of compute capability {}.{}".format(*capability)
    if capability >= (8, 0):
        run.insert(1, Mode("tf32", casts["fp32"], casts["fp32"], _in_tf32(torch)))
    else:
        run.pop()
        for name in ("tf32", "bf16"):
            context.not_run(name, f"it needs compute capability 8.0, {sm}")
    if capability >= (8, 9):
        run.append(_fp8(torch))
    else:
        context.not_run("fp8", f"it needs compute capability 8.9, {sm}")
    return run


def _in_tf32(torch: Any) -> Callable[[Any, Any], Any]:
    def product(left: Any, right: Any) -> Any:
        # This setting exists in every torch, and beside the older and the newer one: since 2.9 the use of both in one
        # process raises.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return left @ right
        finally:
            torch.set_float32_matmul_precision(before)

    return product


def _fp8(torch: Any) -> Mode:
    """e4m3, with a result in bf16. cuBLAS requires the right matrix in columns."""
    one = torch.ones((), device="cuda")
    cast = operator.methodcaller("to", torch.float8_e4m3fn)

    def product(left: Any, right: Any) -> Any:
        # torch 2.4 to 2.15 have no public name for it; 2.4 adds the largest element to the result.
        found = torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return found[0] if isinstance(found, tuple) else found

    return Mode("fp8", cast, lambda matrix: cast(matrix).t().contiguous().t(), product)


#: Names of `torch.nn.attention.SDPBackend`; MATH runs everywhere: if it does not, the check fails.
_MATH = "MATH"
KERNELS: Mapping[str, str] = {
    _MATH: "math",
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "CUDNN_ATTENTION": "cuDNN",
}
#: torch's messages if a kernel does not support these inputs on this device; any other error fails the check.
_UNSUPPORTED = ("No available kernel", "No viable backend")


def kernels(torch: Any, context: CheckContext, dtypes: Mapping[str, Any]) -> None:
    """Run every kernel in every type, forward and backward; report those that this machine lacks."""
    backends = torch.nn.attention.SDPBackend
    ran: list[str] = []
    # Query, key, value and the gradient of the result, each of (batch, heads, length, size).
    shape = (2, 4, SIZES[f"transformer.attention_length.{context.device}"], 64)
    for type_name, dtype in dtypes.items():
        numbers = torch.Generator().manual_seed(context.request.seed)
        *inputs, towards = (torch.randn(shape, generator=numbers).to(context.device, dtype) for _ in range(4))
        right = _formula(torch, inputs, towards)
        for member, name in KERNELS.items():
            part = f"{name} attention in {type_name}"
            if not hasattr(backends, member):
                context.not_run(part, f"torch {torch.__version__} has no such kernel")
                continue
            with case(torch, context, part):
                found, why = _attend(torch, getattr(backends, member), inputs, towards)
                if found:
                    ran.append(f"{name} in {type_name}")
                    bound = limit(f"transformer.attention.{type_name}")
                    hint = tf32_hint(type_name)
                    context.within(f"{part}, output", relative_error(found[0], right[0]), bound, hint=hint)
                    context.within(f"{part}, gradient", relative_error(found[1], right[1]), bound, hint=hint)
                elif member == _MATH:
                    context.exact(part, ok=False, detail=why)
                else:
                    context.not_run(part, why if context.request.cuda else "torch has no such kernel for the CPU")
    context.note("attention's kernels that ran", ", ".join(ran))


def _formula(torch: Any, inputs: list[Any], towards: Any) -> tuple[Any, Any]:
    query, key, value = (each.double().requires_grad_() for each in inputs)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    output = torch.softmax(scores, -1) @ value
    output.backward(towards.double())
    return output.detach(), joined_gradients(torch, (query, key, value))


def _attend(torch: Any, kernel: Any, inputs: list[Any], towards: Any) -> tuple[tuple[Any, Any] | None, str]:
    """The output and the joined gradient by one kernel; or None, and why it does not support these inputs."""
    own = [each.clone().requires_grad_() for each in inputs]
    with warnings.catch_warnings(record=True) as caught, torch.nn.attention.sdpa_kernel(kernel):
        warnings.simplefilter("always")
        try:
            output = torch.nn.functional.scaled_dot_product_attention(*own)
        except RuntimeError as error:
            if not any(words in str(error) for words in _UNSUPPORTED):
                raise
            return None, "; ".join(_unmet(caught)) or str(error).partition(". ")[0]
        output.backward(towards)
    return (output.detach(), joined_gradients(torch, own)), ""


def _unmet(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """The unmet requirements of a kernel: torch warns of each, with a position in its source."""
    found: list[str] = []
    for each in caught:
        text = str(each.message).partition(" (Triggered internally")[0].strip()
        if "disabled" in text or text.endswith("because:") or text in found:
            continue
        found.append(text)
    return found


_NAME = "torch.compile"
#: Messages of inductor on the CPU and of Triton's launcher.
_NO_COMPILER = ("InvalidCxxCompiler", "No working C++ compiler", "Failed to find C compiler")
#: Of Triton, which reads the linker's cache.
_NO_DRIVER = "libcuda.so cannot found"
_MAX_CHARACTERS = 300


def compiled(torch: Any, context: CheckContext) -> None:
    """Compile a small block and run it forward and backward; inductor's cache in the check's folder is empty."""
    if context.request.cuda and torch.cuda.get_device_capability() < (7, 0):
        context.not_run(_NAME, "Triton needs compute capability 7.0")
        return
    # The default is one process per core, each of which imports torch.
    settings: Any = importlib.import_module("torch._inductor.config")
    settings.compile_threads = 1
    seed, nn = context.request.seed, torch.nn
    torch.manual_seed(seed)
    block = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(context.device)
    batch = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).to(context.device)
    plain = _results(torch, block, block, batch)
    try:
        optimized = _results(torch, torch.compile(block), block, batch)
    except Exception as error:
        detail, hint = compile_failure(error)
        context.exact(f"{_NAME} runs", ok=False, detail=detail, hint=hint)
        return
    graphs = importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    context.exact(f"{_NAME} runs", ok=graphs > 0, detail=f"{graphs} graphs were compiled")
    for name, found, right in zip(("output", "gradient"), optimized, plain):
        context.within(f"{_NAME}'s {name}", relative_error(found, right), limit("transformer.compile"))


def _results(torch: Any, run: Any, block: Any, batch: Any) -> tuple[Any, Any]:
    """The output and the joined gradient of `block`'s parameters. run: the block, or the block compiled."""
    block.zero_grad()
    output = run(batch)
    output.square().mean().backward()
    return output.detach(), joined_gradients(torch, block.parameters())


def compile_failure(error: BaseException) -> tuple[str, str]:
    """Why torch.compile failed: the error with its causes, and a hint for known ones."""
    text = "\n".join(error_texts(error))
    lines = [_line(each) for each in error_chain(error)]
    reason = "; because of ".join(lines)
    if any(message in text for message in _NO_COMPILER):
        hint = 'set [image] compiler = "auto" for one in the image; outside of images install g++'
        return f"there is no C compiler, which torch.compile needs ({lines[-1]})", hint
    if "Python.h" in text:
        hint = "install them with the compiler: a standalone Python includes them, Debian's are in python3-dev"
        return f"Python's headers are missing, which torch.compile needs ({lines[-1]})", hint
    if missing := re.search(r"No module named '(\w+)", text):
        # torch 2.6 imports setuptools to compile for the CPU, and requires it from Python 3.12 on only.
        return reason, f"install {missing[1]}: torch imports it and does not require it"
    if _NO_DRIVER in text:
        hint = "run ldconfig as root where NVIDIA's driver is installed, or set TRITON_LIBCUDA_PATH to its folder"
        return reason, hint
    if failed := _failed_command(error):
        return failed, "run that compiler: it needs its own programs (cc1, as, ld) and the headers of libc"
    return reason, ""


def _failed_command(error: BaseException) -> str:
    """A compiler that failed, its exit status, and a line of its errors; empty if none did.

    Triton does not read what it prints: it is in the check's output.
    """
    chain = list(error_chain(error))
    # InductorError has no cause: torch 2.11 raises it `from None`.
    inner = getattr(chain[-1], "inner_exception", None)
    if inner is not None:
        chain += error_chain(inner)
    for each in chain:
        if not isinstance(each, subprocess.CalledProcessError):
            continue
        words = each.cmd.split() if isinstance(each.cmd, str) else each.cmd
        printed = each.stderr or each.output or ""
        if isinstance(printed, bytes):
            printed = printed.decode(errors="replace")
        texts = [f"the compiler {words[0]} failed with exit status {each.returncode}", _telling(lines_of(printed))]
        return ": ".join(filter(None, texts))[:_MAX_CHARACTERS]
    return ""


def _telling(lines: Sequence[str]) -> str:
    """The first line with `error:`, else the last one."""
    errors = [line for line in lines if "error:" in line]
    return next(iter([*errors, *lines[-1:]]), "")


def _line(error: BaseException) -> str:
    """The first line with `error:`, else the first that does not announce another one (torch 2.6: `... raised:`)."""
    lines = lines_of(str(error)) or [""]
    whole = [line for line in lines if not line.endswith(":")] or lines
    first = next((line for line in lines if "error:" in line), whole[0])
    return f"{type(error).__name__}: {first}"[:_MAX_CHARACTERS]
