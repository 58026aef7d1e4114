"""`torch.compile`: it compiles, and what it has compiled agrees with what it was given."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from envspec.conformance.bounds import limit
from envspec.conformance.tensors import generator, joined, relative_error
from envspec.conformance.trial import Trial

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
