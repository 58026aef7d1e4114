"""The process of one extension on one device, and its errors in words.

Metadata says what a wheel was built for: a version like 2.8.3+cu12torch2.8cxx11abiTRUE or 2.1.2+pt28cu128, or a
requirement torch==2.8.0. Sources: names of the wheels of flash-attn, mamba-ssm and causal-conv1d, and of PyG; metadata
of xformers' wheels up to 0.0.34. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from envspec.conformance.events import CheckContext
from envspec.conformance.extensions.operation import Extension, Operation
from envspec.conformance.extensions.table import EXTENSIONS
from envspec.conformance.results import error_texts

#: The device's name for the CPU; a GPU's is its number.
CPU = "cpu"
_NO_CODE = ("no kernel image is available", "cudaErrorNoKernelImageForDevice", "device kernel image is invalid")
#: Of libraries that were linked to another torch, or to another C++ ABI of it.
_OTHER_TORCH = ("undefined symbol", "libtorch", "libc10")
_DRIVER = ("libcuda.so", "libnvidia-ml.so")


def work(context: CheckContext, name: str, device: str) -> None:
    """Run an extension on a device, `cpu` or a GPU's number."""
    if device == CPU:
        context.request = replace(context.request, device=CPU)
    _run(context, name, EXTENSIONS[name], device)


def place(name: str, device: str) -> str:
    """The prefix of an extension's findings."""
    if device == CPU:
        return f"{name} on the CPU"
    return f"{name} on GPU {device}"


def _run(context: CheckContext, name: str, extension: Extension, device: str) -> None:
    torch = context.load("torch")
    about = _About(context, name, extension, str(torch.__version__))
    gpu = "the CPU"
    if device != CPU:
        torch.cuda.set_device(int(device))
        properties = torch.cuda.get_device_properties(int(device))
        gpu = f"{properties.name} (sm_{properties.major}{properties.minor})"
    runs = device != CPU or extension.on_cpu
    where = place(name, device)
    try:
        with context.phase(f"import {extension.module}"):
            module = importlib.import_module(extension.module)
    except Exception as error:
        if not runs and (not isinstance(error, (ImportError, OSError)) or _has(error, _DRIVER)):
            context.not_run(where, f"{about.subject} does not import without a GPU: {_text(error)}")
            return
        if not isinstance(error, (ImportError, OSError)):
            raise
        detail, hint = about.import_error(error)
        context.exact(f"{where}: import", ok=False, detail=detail, hint=hint)
        return
    context.ran(name, about.version)
    if not runs:
        context.exact(f"{where}: import", ok=True, detail=f"{about.subject} with torch {torch.__version__}")
        context.not_run(where, f"{about.subject}: its operator has code for GPUs only")
        return
    try:
        with context.phase(where):
            extension.compare(Operation(context, torch, module, f"{about.subject}, {gpu}", where))
            if device != CPU:
                # Errors of kernels arrive late.
                torch.cuda.synchronize()
    except Exception as error:
        if not _has(error, _NO_CODE):
            raise
        detail, hint = about.no_code(gpu)
        context.exact(f"{where}: kernels", ok=False, detail=detail, hint=hint)


def _has(error: BaseException, words: Iterable[str]) -> bool:
    text = "\n".join(error_texts(error))
    return any(word in text for word in words)


def _text(error: BaseException) -> str:
    """The error and its causes, each in its first line."""
    lines = [text.strip().splitlines()[0] for text in error_texts(error)]
    return "; because of ".join(dict.fromkeys(lines))


@dataclass(frozen=True)
class _About:
    """An extension as it is installed, for messages. torch: the installed release."""

    context: CheckContext
    name: str
    extension: Extension
    torch: str

    @property
    def subject(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def version(self) -> str:
        distribution = self._distribution()
        if distribution:
            return distribution.version
        locked = filter(None, map(self.context.request.version, self._names()))
        return next(locked, "of an unknown version")

    def _names(self) -> tuple[str, ...]:
        return (self.name, *self.extension.packages, self.extension.top.replace("_", "-"))

    def _distribution(self) -> importlib.metadata.Distribution | None:
        for each in self._names():
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return importlib.metadata.distribution(each)
        return None

    def built_for(self) -> str:
        """The release of torch that the wheel was built for, as its metadata says; empty if it does not."""
        label = self.version.partition("+")[2]
        if found := re.search(r"torch(\d+)\.(\d+)", label) or re.search(r"pt(\d)(\d+)", label):
            return f"{found[1]}.{found[2]}"
        distribution = self._distribution()
        if distribution is None:
            return ""
        for requirement in distribution.requires or ():
            if found := re.match(r"torch\s*\(?==\s*([0-9][0-9.]*)", requirement):
                return found[1]
        return ""

    def import_error(self, error: BaseException) -> tuple[str, str]:
        """A finding's detail and hint."""
        detail = f"{self.subject} cannot be imported: {_text(error)}"
        if not _has(error, _OTHER_TORCH):
            return detail, f"install {self.name} from one lock with torch: its import fails"
        built_for = self.built_for()
        if not built_for:
            hint = f"lock a wheel of {self.name} for torch {self.torch}, or build it with this torch"
            return f"{detail}; it was built for another torch than {self.torch}", hint
        same = self.torch.startswith(f"{built_for}.") or self.torch.split("+")[0] == built_for
        reason = f"and torch {self.torch} is installed"
        hint = f"lock torch {built_for}, or a wheel of {self.name} for torch {self.torch}"
        if same:
            reason = "of another C++ ABI or CUDA"
            hint = f"lock a wheel of {self.name} for this torch's C++ ABI and CUDA, or build it with this torch"
        return f"{detail}; it was built for torch {built_for} {reason}", hint

    def no_code(self, gpu: str) -> tuple[str, str]:
        """A finding's detail and hint."""
        code: list[str] = []
        if self.context.request.locked:
            for each in self.context.request.locked.code:
                if each.package in self._names():
                    code += [*each.sm, *each.ptx]
        known = f": it has code for {' '.join(code)}" if code else ""
        detail = f"{self.subject} has no code for {gpu}{known} (no kernel image is available)"
        return detail, f"name this GPU in [cuda] gpus and lock again: another wheel of {self.name}, or a build of it"
