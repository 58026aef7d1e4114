"""The environment is the lock's: every file of it, and the CUDA libraries that are in memory after real work."""

from __future__ import annotations

import ctypes
import importlib
import sys
from pathlib import Path
from typing import Any

from envspec.conformance import libraries
from envspec.conformance.events import Trial
from envspec.conformance.numerics import wait
from envspec.conformance.results import NotRun
from envspec.verifier.compare import compare, owned
from envspec.verifier.scan import NoEnvironment, Place, conda_records, distributions, place_of
from envspec.verifier.types import Drift, Result, read_expected

#: So many findings of one kind are told one by one.
_TOLD = 20
_CUDNN_PARTS = ("cudnnGraphVersionCheck", "cudnnOpsVersionCheck", "cudnnCnnVersionCheck", "cudnnAdvVersionCheck")
_ANEW = "make it anew from the lock: `envspec image build LOCK`, or `envspec install LOCK --prefix DIR`"
_FOREIGN = "take its folder out of LD_LIBRARY_PATH, or what brought it out of the environment"


def check(trial: Trial) -> None:
    """Work first, so that everything is mapped; then hash the files; then hold the one against the other."""
    locked = trial.order.locked
    if locked is None or locked.expected is None:
        raise NotRun("no lock is given")
    with trial.phase("hash the files"):
        # The first of the path is the suite's own, which is gone with it.
        try:
            place = place_of(Path(sys.prefix), sys.path[1:])
        except NoEnvironment as fault:
            raise NotRun(str(fault), hint="name an environment's Python by --python") from fault
        result = compare(read_expected(locked.expected), place)
    _tell(trial, result)
    with trial.phase("work with the libraries"):
        _work(trial)
    with trial.phase("look at what is mapped"):
        _mapped(trial, place, {each.path for each in result.findings})


def _tell(trial: Trial, result: Result) -> None:
    counts = result.counts
    for drift in Drift:
        found = [each for each in result.findings if each.drift is drift]
        for each in found[:_TOLD]:
            trial.exact(each.package or "files", ok=False, told=each.text, hint=_ANEW)
        if len(found) > _TOLD:
            trial.exact("and more", ok=False, told=f"{len(found) - _TOLD} of the kind {drift.value!r}")
    if result.is_same:
        trial.exact("every file is the locked one", ok=True, told=f"{counts.files} files of {counts.packages} packages")
    trial.inform("files", counts.size_bytes, "bytes", f"{counts.files} files hashed")
    if counts.unanchored:
        # The lock does not say what is in them: old locks, and wheels whose index gave no part of a file.
        trial.not_run(
            "lists of files against the lock", f"{counts.unanchored} packages are compared with their own list alone"
        )
    trial.tell("programs", f"{counts.own_word} files, such as bin/, are compared with the list beside them alone")


def _work(trial: Trial) -> None:
    """Use what loads libraries late: of cuDNN only one is mapped before a convolution has run."""
    if trial.order.version("torch") is None and trial.order.version("pytorch") is None:
        trial.not_run("libraries after work", "torch is not in the lock")
        return
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        # Which of its files is not there, or not the locked one, is told already.
        trial.exact("torch", ok=False, told=f"can't be imported: {type(error).__name__}: {error}", hint=_ANEW)
        return
    torch.manual_seed(trial.order.seed)
    square = torch.randn(64, 64, device=trial.device)
    square @ square
    torch.nn.functional.conv2d(square[None, None], square[None, None, :3, :3])
    torch.linalg.solve(square + 64 * torch.eye(64, device=trial.device), square)
    torch.fft.fft(square)
    square.to_sparse_csr() @ square
    torch.multinomial(square.abs(), 2)
    wait(torch, trial.device)
    _load_cudnn()


def _load_cudnn() -> None:
    """Have cuDNN load all of its parts, as it does when it needs them: by names that LD_LIBRARY_PATH goes before.

    torch finds the first library of cuDNN by its own RPATH; the others are found by RUNPATH, which comes later. Without
    a GPU it can be asked whether they fit, which loads them. Sources: cuDNN, "cudnnGraphVersionCheck()"; ld.so(8).
    """
    for each in libraries.libraries():
        if each.name.startswith("libcudnn.so"):
            library = ctypes.CDLL(each.path)
            for question in _CUDNN_PARTS:
                if hasattr(library, question):
                    getattr(library, question)()


def _mapped(trial: Trial, place: Place, changed: set[str]) -> None:
    found = libraries.libraries()
    conda = conda_records(place.prefix)
    names = owned([one for site in place.sites for one in distributions(site)], conda, place).names
    foreign = libraries.foreign(found, str(place.prefix), names)
    for each in foreign:
        told = f"{each.path} is in memory, and no locked package brought it"
        trial.exact(each.name, ok=False, told=told, hint=_FOREIGN)
    root = f"{place.prefix}/"
    ours = [each for each in found if each.path.startswith(root) and each.path[len(root) :] in names]
    for each in ours:
        inside = each.path[len(root) :]
        if inside in changed or not each.is_there:
            told = f"{inside} is in memory, and is not the locked file"
            trial.exact(each.name, ok=False, told=told, hint=_ANEW)
    cuda = [each for each in ours if each.is_cuda]
    if not foreign:
        trial.exact("libraries in memory", ok=True, told=f"{len(ours)} of packages, {len(cuda)} of them CUDA's")
