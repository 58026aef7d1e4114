"""Tensors, precision modes, attention and compilation that several checks use.

The formula is computed by plain products and a softmax: a kernel that is wrong in all its forms is found, too.
"""

from __future__ import annotations

import ctypes
import importlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial

#: A time is the best of so many: the others were disturbed.
TIMES = 3
#: libraryPropertyType of cuBLAS: major, minor and patch level. Source: cuBLAS, "cublasGetProperty".
_PROPERTIES = (0, 1, 2)


def deterministic(torch: Any) -> None:
    """The same kernels in every run. The suite has set cuBLAS's workspace before this process began.

    What has no such kernel warns instead of ending the check.
    """
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def generator(torch: Any, device: str, seed: int) -> Any:
    """A source of random numbers on a device."""
    return torch.Generator(device=device).manual_seed(seed)


def raw(tensor: Any) -> bytes:
    """A tensor's bytes, in the order of its rows. Not by NumPy: the stack may have none."""
    here = tensor.detach().cpu().contiguous()
    return ctypes.string_at(here.data_ptr(), here.numel() * here.element_size())


def joined(torch: Any, tensors: Iterable[Any]) -> Any:
    """Tensors as one vector in fp64."""
    return torch.cat([each.detach().double().flatten() for each in tensors])


def relative_error(found: Any, right: Any) -> float:
    """|found - right|F / |right|F in fp64; not a number where `found` holds one that is none."""
    right = right.double()
    return float((found.double() - right).norm() / right.norm())


def wait(torch: Any, device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def best_time(torch: Any, device: str, work: Callable[[], Any], times: int = TIMES) -> float:
    """The shortest time of a function, in seconds, after one time that does not count."""
    work()
    best = math.inf
    for _ in range(times):
        wait(torch, device)
        began = time.perf_counter()
        work()
        wait(torch, device)
        best = min(best, time.perf_counter() - began)
    return best


def key(torch: Any, device: str, shapes: Sequence[object]) -> str:
    """What the last bit of a float depends on: device, libraries, shapes."""
    words = [f"torch {torch.__version__}"]
    if device == "cuda":
        card = torch.cuda.get_device_properties(0)
        words += [f"sm_{card.major}{card.minor}", f"{card.multi_processor_count} multiprocessors"]
        words += [f"cuBLAS {cublas_version()}", f"cuDNN {torch.backends.cudnn.version()}"]
    else:
        words += [torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    return ", ".join([*words, *map(str, shapes)])


def cublas_version() -> str:
    """The version of the cuBLAS in this process, as it says itself; empty before its first use."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in maps if "/libcublas.so" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        number = ctypes.c_int()
        parts = [str(number.value) for each in _PROPERTIES if not library.cublasGetProperty(each, ctypes.byref(number))]
        return ".".join(parts)
    return ""


NO_BF16 = "bf16 needs a GPU of compute capability 8.0"


def has_bf16(torch: Any, device: str) -> bool:
    """Whether the device computes in bf16, and does not only emulate it; every CPU counts."""
    return device != "cuda" or tuple(torch.cuda.get_device_capability()) >= (8, 0)


@dataclass(frozen=True)
class Mode:
    """A type of the inputs, and a product in it.

    rounded: a matrix in fp32 -> the same, rounded to the type. product: (M, K) and (K, N), both rounded -> (M, N).
    """

    name: str
    rounded: Callable[[Any], Any]
    product: Callable[[Any, Any], Any]


def modes(torch: Any, device: str) -> tuple[list[Mode], dict[str, str]]:
    """The modes that run on the device, and why the others do not: name -> reason.

    Source of the compute capabilities: CUDA C++ programming guide, "Tensor Core Input Precisions".
    """
    run = [_plain("fp32", torch.float32), _plain("fp16", torch.float16), _plain("bf16", torch.bfloat16)]
    if device != "cuda":
        reason = "no GPU is asked for"
        return run, {"tf32": reason, "fp8": reason}
    capability = tuple(torch.cuda.get_device_capability())
    sm = "this GPU is of compute capability {}.{}".format(*capability)
    lacking: dict[str, str] = {}
    if capability >= (8, 0):
        run.insert(1, Mode("tf32", _as_it_is, _in_tf32(torch)))
    else:
        run.pop()
        lacking |= dict.fromkeys(("tf32", "bf16"), f"it needs compute capability 8.0, {sm}")
    if capability >= (8, 9):
        run.append(_fp8(torch))
    else:
        lacking["fp8"] = f"it needs compute capability 8.9, {sm}"
    return run, lacking


def _as_it_is(matrix: Any) -> Any:
    return matrix


def _times(left: Any, right: Any) -> Any:
    return left @ right


def _plain(name: str, dtype: Any) -> Mode:
    return Mode(name, lambda matrix: matrix.to(dtype), _times)


def _in_tf32(torch: Any) -> Callable[[Any, Any], Any]:
    def product(left: Any, right: Any) -> Any:
        # Of the ways to say it, this one is in every torch and goes together with the older and the newer one: 2.9 and
        # later raise where both are used in a process.
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return left @ right
        finally:
            torch.set_float32_matmul_precision(before)

    return product


def _fp8(torch: Any) -> Mode:
    """e4m3, with a result in bf16. cuBLAS wants the right matrix by columns."""
    one = torch.ones((), device="cuda")

    def product(left: Any, right: Any) -> Any:
        by_columns = right.t().contiguous().t()
        # Under its own name, since torch 2.4 to 2.15 have no other for it; 2.4 adds the largest element to the result.
        found = torch._scaled_mm(left, by_columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return found[0] if isinstance(found, tuple) else found

    return Mode("fp8", lambda matrix: matrix.to(torch.float8_e4m3fn), product)


#: Names of `torch.nn.attention.SDPBackend`; MATH runs everywhere, so where it does not, that is a fault.
_MATH = "MATH"
KERNELS: Mapping[str, str] = {
    _MATH: "math",
    "FLASH_ATTENTION": "flash",
    "EFFICIENT_ATTENTION": "efficient",
    "CUDNN_ATTENTION": "cuDNN",
}
#: torch's words for a kernel that does not take these inputs on this device; all else that it raises is a fault.
_NOT_HERE = ("No available kernel", "No viable backend")


def kernels(torch: Any, trial: Trial, dtypes: Mapping[str, Any]) -> None:
    """Every kernel in every type, forward and backward; those that this machine does not have are told."""
    has = torch.nn.attention.SDPBackend
    ran: list[str] = []
    for type_name, dtype in dtypes.items():
        inputs, towards = _inputs(torch, trial, dtype)
        right = _formula(torch, inputs, towards)
        for member, name in KERNELS.items():
            case = f"{name} attention in {type_name}"
            if not hasattr(has, member):
                trial.not_run(case, f"torch {torch.__version__} has no such kernel")
                continue
            found, why = _attend(torch, getattr(has, member), inputs, towards)
            if found is None:
                _absent(trial, member, case, why)
                continue
            ran.append(f"{name} in {type_name}")
            bound = limit(f"transformer.attention.{type_name}")
            trial.within(f"{case}, output", relative_error(found[0], right[0]), bound)
            trial.within(f"{case}, gradient", relative_error(found[1], right[1]), bound)
    trial.tell("attention's kernels that ran", ", ".join(ran))


def _absent(trial: Trial, member: str, case: str, why: str) -> None:
    if member == _MATH:
        trial.exact(case, ok=False, told=why)
    else:
        trial.not_run(case, why if trial.order.cuda else "torch has no such kernel for the CPU")


def _inputs(torch: Any, trial: Trial, dtype: Any) -> tuple[list[Any], Any]:
    """Query, key and value (batch, heads, length, size) in `dtype`, and the gradient of the result."""
    shape = (2, 4, SIZES[f"transformer.attention_length.{trial.device}"], 64)
    numbers = generator(torch, "cpu", trial.order.seed)
    drawn = [torch.randn(shape, generator=numbers).to(trial.device, dtype) for _ in range(4)]
    return drawn[:3], drawn[3]


def _formula(torch: Any, inputs: list[Any], towards: Any) -> tuple[Any, Any]:
    query, key, value = (each.double().requires_grad_() for each in inputs)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    output = torch.softmax(scores, -1) @ value
    output.backward(towards.double())
    return output.detach(), joined(torch, (each.grad for each in (query, key, value)))


def _attend(torch: Any, kernel: Any, inputs: list[Any], towards: Any) -> tuple[tuple[Any, Any] | None, str]:
    """The output and the joined gradient by one kernel alone; or None, and why torch has none for these inputs."""
    own = [each.clone().requires_grad_() for each in inputs]
    with warnings.catch_warnings(record=True) as said, torch.nn.attention.sdpa_kernel(kernel):
        warnings.simplefilter("always")
        try:
            output = torch.nn.functional.scaled_dot_product_attention(*own)
        except RuntimeError as error:
            if not any(words in str(error) for words in _NOT_HERE):
                raise
            return None, _reason(error, [str(each.message) for each in said])
        output.backward(towards)
    return (output.detach(), joined(torch, (each.grad for each in own))), ""


def _reason(error: RuntimeError, said: list[str]) -> str:
    """torch tells by warnings what a kernel lacks, one for each of them, and where in its source it says so."""
    words = [each.partition(" (Triggered internally")[0].strip() for each in said]
    own = [each for each in words if "disabled" not in each and not each.endswith("because:")]
    return "; ".join(dict.fromkeys(own)) or str(error).partition(". ")[0]


_NAME = "torch.compile"
#: Of inductor on the CPU, and of Triton's launcher, when they find no compiler.
_NO_COMPILER = ("InvalidCxxCompiler", "No working C++ compiler", "Failed to find C compiler")
_NO_ONE = "there is no C compiler, which torch.compile needs"
_BRING_ONE = '[image] compiler = "auto" brings one into the image; outside of images install g++'
_NO_HEADERS = "Python's headers are missing, which torch.compile needs"
_BRING_HEADERS = "install them with the compiler: they come with a standalone Python, and with Debian's python3-dev"
#: Triton asks the linker's cache, not the linker.
_NO_DRIVER = "libcuda.so cannot found"
_WHERE_IT_IS = "run ldconfig, as root, where NVIDIA's driver was installed, or set TRITON_LIBCUDA_PATH to its folder"
_CHARACTERS = 300


def compiled(torch: Any, trial: Trial) -> None:
    """A small block forward and backward, compiled anew: the check's folder is empty, and so is inductor's cache."""
    if trial.order.cuda and torch.cuda.get_device_capability() < (7, 0):
        trial.not_run(_NAME, "Triton needs compute capability 7.0")
        return
    # As many processes as cores otherwise, each of which imports torch.
    settings: Any = importlib.import_module("torch._inductor.config")
    settings.compile_threads = 1
    block, batch = _block(torch, trial)
    plain = _results(torch, block, block, batch)
    try:
        made = _results(torch, torch.compile(block), block, batch)
    except Exception as error:
        told, hint = _why(error)
        trial.exact(f"{_NAME} runs", ok=False, told=told, hint=hint)
        return
    graphs = importlib.import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
    trial.exact(f"{_NAME} runs", ok=graphs > 0, told=f"{graphs} graphs were compiled")
    for name, found, right in zip(("output", "gradient"), made, plain):
        trial.within(f"{_NAME}'s {name}", relative_error(found, right), limit("transformer.compile"))


def _block(torch: Any, trial: Trial) -> tuple[Any, Any]:
    torch.manual_seed(trial.order.seed)
    nn = torch.nn
    block = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(trial.device)
    return block, torch.randn(32, 64, generator=generator(torch, "cpu", trial.order.seed)).to(trial.device)


def _results(torch: Any, run: Any, block: Any, batch: Any) -> tuple[Any, Any]:
    """The output and the joined gradient of `block`'s parameters. run: the block, or what was made of it."""
    block.zero_grad()
    output = run(batch)
    output.square().mean().backward()
    return output.detach(), joined(torch, (each.grad for each in block.parameters()))


def _why(error: BaseException) -> tuple[str, str]:
    """The error and those behind it, and what to do where that is known."""
    chain = list(_chain(error))
    whole = "\n".join(f"{type(each).__name__}: {each}" for each in chain)
    if any(words in whole for words in _NO_COMPILER):
        return f"{_NO_ONE} ({_line(chain[-1])})", _BRING_ONE
    if "Python.h" in whole:
        return f"{_NO_HEADERS} ({_line(chain[-1])})", _BRING_HEADERS
    hint = _WHERE_IT_IS if _NO_DRIVER in whole else ""
    return "; because of ".join(_line(each) for each in chain), hint


def _chain(error: BaseException) -> Iterator[BaseException]:
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _line(error: BaseException) -> str:
    """The first line that tells of an error, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    telling = next((line for line in lines if "error:" in line), lines[0])
    return f"{type(error).__name__}: {telling}"[:_CHARACTERS]
