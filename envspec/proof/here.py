"""The suite in a Python of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from envspec.effects.event_loop import run_to_end
from envspec.effects.process import Bond, Ending, Finished, attend
from envspec.errors import UnfitMachine, UsageError
from envspec.proof.staging import Stage
from envspec.proof.watching import Told, tell


def python_here(environ: Mapping[str, str], named: Path | None = None) -> Path:
    """The Python to be tested: the named one, the active environment's, or the first on PATH.

    Raises:
        UsageError: there is none.
    """
    if named is not None:
        if not os.access(named, os.X_OK) or named.is_dir():
            raise UsageError(f"--python {named}: no program", hint="name an environment's bin/python")
        return named.absolute()
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environ.get(variable) and (python := Path(environ[variable], "bin", "python")).exists():
            return python
    found = shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH"))
    if found is None:
        raise UsageError("there is no Python on PATH to be tested", hint="activate an environment, or --python PATH")
    return Path(found).absolute()


def run_here(python: Path, stage: Stage, environ: Mapping[str, str], told: Told) -> Finished:
    """Run the suite to its end, in the variables that the user has; its results are in `stage.document`.

    Raises:
        UnfitMachine: the Python can't be started.
    """
    # It ends when its stdin does, also where this process is killed: nothing of it is left.
    command = [str(python), str(stage.run), "--until-stdin-ends", str(stage.order), str(stage.document)]
    work = attend(
        command,
        environ=environ,
        cwd=stage.results,
        bond=Bond(ending=Ending.STDIN),
        told=lambda line: tell(line, told),
    )
    try:
        return run_to_end(work)
    except OSError as fault:
        raise UnfitMachine(f"{python} can't be started: {fault.strerror}", hint="--python names another one") from fault
