"""Every file of the environment is as locked, and so are the CUDA libraries in memory after real work."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

from envspec.conformance import libraries
from envspec.conformance.events import CheckContext
from envspec.conformance.numerics import wait
from envspec.conformance.results import NotRun
from envspec.verifier.compare import Installed, compare, read_installed
from envspec.verifier.scan import NoEnvironment, find_environment
from envspec.verifier.types import Drift, Expected, VerifyResult

#: Findings of one kind that are reported one by one.
_MAX_OF_A_KIND = 20
_CUDNN_PARTS = ("cudnnGraphVersionCheck", "cudnnOpsVersionCheck", "cudnnCnnVersionCheck", "cudnnAdvVersionCheck")
_REINSTALL = "create it again from the lock: `envspec image build LOCK`, or `envspec install LOCK --prefix DIR`"
_FOREIGN = "remove its folder from LD_LIBRARY_PATH, or the package that installed it from the environment"


def check(context: CheckContext) -> None:
    """Hash the files; then use the libraries, so that everything is mapped; then compare what is mapped."""
    locked = context.request.locked
    if locked is None or locked.expected is None:
        raise NotRun("no lock is given")
    with context.phase("hash the files"):
        # Without the first folder of the path, which is the suite's own.
        try:
            environment = find_environment(Path(sys.prefix), sys.path[1:])
        except NoEnvironment as error:
            raise NotRun(str(error), hint="name an environment's Python by --python") from error
        installed = read_installed(environment)
        result = compare(Expected.of(locked.expected), installed)
    _report(context, result)
    with context.phase("work with the libraries"):
        _work(context)
    with context.phase("look at what is mapped"):
        _mapped(context, installed, {each.path for each in result.findings})


def _report(context: CheckContext, result: VerifyResult) -> None:
    counts = result.counts
    for drift in Drift:
        found = [each for each in result.findings if each.drift is drift]
        for each in found[:_MAX_OF_A_KIND]:
            context.exact(each.package or "files", ok=False, detail=each.text, hint=_REINSTALL)
        if len(found) > _MAX_OF_A_KIND:
            more = len(found) - _MAX_OF_A_KIND
            context.exact("and more", ok=False, detail=f"{more} of the kind {drift.value!r}")
    if result.is_same:
        detail = f"{counts.files} files of {counts.packages} packages"
        context.exact("every file is the locked one", ok=True, detail=detail)
    context.measure("files", counts.size_bytes, "bytes", f"{counts.files} files hashed")
    if counts.against_record:
        # Their digests are not in the lock: old locks, and wheels of an index that refused range requests.
        reason = f"{counts.against_record} packages are compared with their own list only"
        context.not_run("lists of files against the lock", reason)
    context.note("programs", f"{counts.record_only} files, such as bin/, are compared with their package's list only")


def _work(context: CheckContext) -> None:
    """Use what loads libraries late: of cuDNN only one is mapped before the first convolution."""
    if context.request.version("torch") is None and context.request.version("pytorch") is None:
        context.not_run("libraries after work", "torch is not in the lock")
        return
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        # The file that is missing or differs is a finding already.
        detail = f"cannot be imported: {type(error).__name__}: {error}"
        context.exact("torch", ok=False, detail=detail, hint=_REINSTALL)
        return
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
    for each in libraries.libraries():
        if each.name.startswith("libcudnn.so"):
            library = ctypes.CDLL(each.path)
            for function in _CUDNN_PARTS:
                if hasattr(library, function):
                    getattr(library, function)()


def _mapped(context: CheckContext, installed: Installed, changed: set[str]) -> None:
    found, prefix, owned = libraries.libraries(), installed.environment.prefix, installed.files.owners
    foreign = libraries.foreign(found, str(prefix), owned)
    for each in foreign:
        detail = f"{each.path} is in memory and belongs to no locked package"
        context.exact(each.name, ok=False, detail=detail, hint=_FOREIGN)
    count = of_cuda = 0
    for each in found:
        inside = each.path.removeprefix(f"{prefix}/")
        if inside == each.path or inside not in owned:
            continue
        count += 1
        of_cuda += each.is_cuda
        if inside in changed or not each.is_current:
            context.exact(
                each.name, ok=False, detail=f"{inside} is in memory and is not the locked file", hint=_REINSTALL
            )
    if not foreign:
        context.exact("libraries in memory", ok=True, detail=f"{count} of packages, {of_cuda} of them CUDA's")
