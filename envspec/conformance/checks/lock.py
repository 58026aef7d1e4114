"""Every file of the environment is as locked."""

from __future__ import annotations

import sys
from pathlib import Path

from envspec.conformance.events import CheckContext
from envspec.conformance.results import NotRun
from envspec.verifier.compare import compare
from envspec.verifier.installed import read_installed
from envspec.verifier.scan import NoEnvironment, find_environment
from envspec.verifier.types import Drift, Expected, VerifyResult

#: Findings of one kind that are reported one by one.
_MAX_OF_A_KIND = 20
_HINTS = {
    Drift.SHADOWED: "remove it there, or set PYTHONNOUSERSITE=1 (if it is in a home) or another PYTHONPATH: the "
    "environment itself is as locked",
}
_REINSTALL = "create it again from the lock: `envspec image build LOCK`, or `envspec install LOCK --prefix DIR`"


def check(context: CheckContext) -> None:
    """Hash the files, and compare them with the lock."""
    locked = context.request.reference
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


def _report(context: CheckContext, result: VerifyResult) -> None:
    counts = result.counts
    for drift in Drift:
        found = [each for each in result.findings if each.drift is drift]
        for each in found[:_MAX_OF_A_KIND]:
            hint = _HINTS.get(drift, _REINSTALL)
            context.as_locked(each.package or "files", ok=False, detail=each.text, hint=hint)
        if len(found) > _MAX_OF_A_KIND:
            more = len(found) - _MAX_OF_A_KIND
            context.as_locked("and more", ok=False, detail=f"{more} of the kind {drift.value!r}")
    if result.is_same:
        detail = f"{counts.files} files of {counts.packages} packages"
        context.exact("every file is the locked one", ok=True, detail=detail)
    elif not context.request.locked:
        context.not_run("every file is the locked one", f"{len(result.findings)} differences: they only inform")
    context.measure("files", counts.size_bytes, "bytes", f"{counts.files} files hashed")
    if counts.against_record:
        # Their digests are not in the lock: old locks, and wheels of an index that refused range requests.
        reason = f"{counts.against_record} packages are compared with their own list only"
        context.not_run("lists of files against the lock", reason)
    context.note(
        "of installers", f"{counts.record_only} files, such as INSTALLER, are compared with their package's list only"
    )
    if not counts.listed and not counts.conda:
        context.note(
            "Python itself", "its programs and its standard library are not compared: there is no list of them"
        )
