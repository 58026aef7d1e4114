"""CUDA libraries in memory after real work: one copy of each, of an installed package, unchanged, of torch's version.

It needs no lock: torch's own requirements say which versions it was built with, and the packages list their files with
hashes. With a lock, versions and hashes are compared by the checks `device` and `lock`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import LIBRARIES, LoadedLibrary, debian_packages, libraries
from envspec.conformance.numerics import wait
from envspec.conformance.requirements import PinnedPackage, pins
from envspec.verifier.hashing import ExpectedFile, hash_all
from envspec.verifier.record import STRONG
from envspec.verifier.scan import Distribution, conda_records, distributions, same_version

_CUDNN_PARTS = ("cudnnGraphVersionCheck", "cudnnOpsVersionCheck", "cudnnCnnVersionCheck", "cudnnAdvVersionCheck")
#: Names of the libraries that torch builds for CUDA.
_TORCH = ("libc10_cuda", "libtorch_cuda", "libcaffe2_nvrtc")
_FOREIGN = "remove its folder from LD_LIBRARY_PATH, or the package that installed it from the environment"
_TWICE = "keep one of them: two copies of a CUDA library in a process do not share their state of the GPU"
_CHANGED = "install its package again"
_PINS = "install the versions that torch requires: `pip check` lists them"


@dataclass(frozen=True)
class _Owner:
    """A package that lists a library. path: as listed. hashes: algorithm and digest, if a strong one is listed."""

    package: str
    version: str
    path: str
    hashes: tuple[tuple[str, str], ...]


def check(context: CheckContext) -> None:
    """Use the libraries, so that all are mapped, and look at what is mapped."""
    torch = context.load("torch")
    with context.phase("read the lists of files"):
        installed = _installed()
        owners = owners_of(installed.values())
    required = pins("torch", installed)
    if context.request.locked is None:
        _compare_pins(context, str(torch.__version__), required, installed)
    with context.phase("work with the libraries"):
        _work(torch, context)
    with context.phase("look at what is mapped"):
        found = [each for each in libraries() if each.is_cuda]
        _mapped(context, found, owners, has_pins=bool(required))
        _versions(context, owners)
    if context.request.locked is None:
        with context.phase("hash the libraries"):
            _hashes(context, {each.path: owners[each.path] for each in found if each.path in owners})


def _installed() -> dict[str, Distribution]:
    """Name -> the first distribution of it on Python's path, without the suite's own folder."""
    found: dict[str, Distribution] = {}
    for folder in dict.fromkeys(os.path.realpath(each) for each in sys.path[1:]):
        if Path(folder).is_dir():
            for one in distributions(Path(folder)):
                found.setdefault(one.name, one)
    return found


def owners_of(installed: Iterable[Distribution]) -> dict[str, _Owner]:
    """Real path of a CUDA library -> its owner."""
    found: dict[str, _Owner] = {}
    for one in installed:
        root = os.path.realpath(one.site)
        for entry in one.entries or ():
            path = os.path.normpath(entry.path)
            if ".so" in path and LoadedLibrary(path, is_current=True).is_cuda:
                hashes = ((entry.algorithm, entry.digest),) if entry.algorithm in STRONG else ()
                found[os.path.realpath(Path(root, path))] = _Owner(one.name, one.version, path, hashes)
    root = os.path.realpath(sys.prefix)
    for record in conda_records(Path(root)):
        digests = {path: ("sha256", digest) for path, digest, _ in record.files if digest}
        for path in record.paths:
            if ".so" in path and LoadedLibrary(path, is_current=True).is_cuda:
                hashes = (digests[path],) if path in digests else ()
                owner = _Owner(record.name, record.version, path, hashes)
                found.setdefault(os.path.realpath(Path(root, path)), owner)
    return found


def _compare_pins(
    context: CheckContext, torch: str, required: Sequence[PinnedPackage], installed: Mapping[str, Distribution]
) -> None:
    if not required:
        context.not_run("torch's requirements", f"torch {torch} requires no release of a CUDA library")
    for pin in required:
        ok, version = False, "none"
        found = installed.get(pin.name)
        if found and found.version:
            version = found.version
            ok = pin.allows(version)
        detail = f"torch {torch} requires {pin.version}; {version} is installed"
        context.exact(f"{pin.name} is torch's", ok=ok, detail=detail, hint=_PINS)


def _work(torch: Any, context: CheckContext) -> None:
    """Use what loads libraries late: of cuDNN only one is mapped before the first convolution."""
    torch.manual_seed(context.request.seed)
    square = torch.randn(64, 64, device=context.device)
    square @ square
    torch.nn.functional.conv2d(square[None, None], square[None, None, :3, :3])
    torch.linalg.solve(square + 64 * torch.eye(64, device=context.device), square)
    torch.fft.fft(square)
    square.to_sparse_csr() @ square
    torch.multinomial(square.abs(), 2)
    wait(torch, context.device)
    # torch finds the first library of cuDNN by its RPATH, before LD_LIBRARY_PATH; that loads the others on demand, by
    # RUNPATH, after it. These functions load all of them, even without a GPU.
    # Sources: cuDNN, "cudnnGraphVersionCheck()"; ld.so(8).
    for each in libraries():
        if each.name.startswith("libcudnn.so"):
            library = ctypes.CDLL(each.path)
            for function in _CUDNN_PARTS:
                if hasattr(library, function):
                    getattr(library, function)()


def _mapped(
    context: CheckContext, found: Sequence[LoadedLibrary], owners: Mapping[str, _Owner], *, has_pins: bool
) -> None:
    of_packages = [each for each in found if each.path in owners]
    # What torch builds for CUDA is its own wherever CUDA's libraries come from.
    of_nvidia = [each for each in of_packages if not each.name.startswith(_TORCH)]
    is_of_system = not has_pins and not of_nvidia and context.request.locked is None
    foreign = [each for each in found if each.path not in owners]
    if is_of_system:
        # A torch that was built for the system's CUDA, as in NVIDIA's own images.
        packages = debian_packages({each.path for each in foreign})
        for each in foreign:
            context.note(each.name, f"{each.path}: {packages.get(each.path, 'of no package')}")
    else:
        for each in foreign:
            detail = f"{each.path} is in memory and belongs to no installed package"
            context.exact(each.name, ok=False, detail=detail, hint=_FOREIGN)
    copies: dict[str, list[str]] = {}
    for each in found:
        copies.setdefault(each.kind, []).append(each.path)
    for kind, paths in copies.items():
        if len(paths) > 1:
            context.exact(f"one copy of {kind}", ok=False, detail=f"in memory: {', '.join(paths)}", hint=_TWICE)
    for each in found:
        if not each.is_current:
            context.exact(each.name, ok=False, detail=f"{each.path} was replaced after it was loaded", hint=_CHANGED)
    detail = f"{len(found)} in memory, {len(of_packages)} of them of installed packages"
    if found:
        context.exact("one copy of each CUDA library", ok=len(copies) == len(found), detail=detail)
    else:
        context.not_run("CUDA libraries", "this torch has loaded none")


def _versions(context: CheckContext, owners: Mapping[str, _Owner]) -> None:
    """What a library reports of itself, against the package that lists it."""
    for name, library in LIBRARIES.items():
        for path in library.mapped():
            try:
                text = ".".join(map(str, library.version(path)))
            except (OSError, AttributeError) as error:
                context.not_run(f"{name} is its package's", str(error))
                continue
            context.ran(name, text)
            owner = owners.get(str(path))
            if owner and owner.package in library.names:
                listed = ".".join(owner.version.split(".")[: library.parts])
                detail = f"{text} runs; {owner.package} is {owner.version}"
                context.exact(f"{name} is its package's", ok=same_version(text, listed), detail=detail, hint=_CHANGED)


def _hashes(context: CheckContext, found: Mapping[str, _Owner]) -> None:
    """found: by real path, since an installer may link files from its cache."""
    unlisted = [each.path for each in found.values() if not each.hashes]
    if unlisted:
        context.not_run("libraries listed without a strong hash", ", ".join(unlisted))
    listed = [ExpectedFile(path, dict.fromkeys(one.hashes)) for path, one in found.items() if one.hashes]
    hashed = hash_all(listed, root="")
    for file in hashed:
        if file.drift is not None:
            owner = found[file.path]
            detail = f"{owner.path} is not the file that {owner.package} {owner.version} lists"
            context.exact(file.path.rpartition("/")[2], ok=False, detail=detail, hint=_CHANGED)
    size_bytes = sum(each.size_bytes for each in hashed)
    context.measure("hashed", size_bytes, "bytes", f"{len(hashed)} CUDA libraries against their packages' lists")
