"""Installs what a tool locked and imports the torch family: 2 to 8 GB an environment, one at a time, deleted after."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from bench import pins
from bench.environment import clean
from bench.measure import run
from bench.results import published
from bench.workshop import uv

#: A CUDA build of torch imports on a machine without a GPU: its CPU half runs.
LIMIT_S: Final = 900


def try_out(result: Path, python: Path, place: Path) -> str:
    """`yes`, or the last line of what went wrong. place: a folder of its own, gone afterwards."""
    locked = pins.read(result)
    wanted = list(pins.family_of(locked))
    # What a run that was ended left there.
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        return _install(locked, python, place) or _import(wanted, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _install(locked: dict[str, str], python: Path, place: Path) -> str:
    """Exactly the pins, without their dependencies: what is tested is the lock, not another resolution."""
    several = [name for name, version in locked.items() if "|" in version]
    if several:
        return f"not tried: {len(several)} names have several versions in this universal lock"
    requirements = place / "requirements.txt"
    requirements.write_text("".join(f"{name}=={version}\n" for name, version in sorted(locked.items())))
    environ = clean(os.environ, home=place, proxy=None)
    venv = run([uv(), "venv", "-q", "--python", python, place / "venv"], cwd=place, env=environ, limit_s=60)
    install: list[str | Path] = [
        uv(),
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--python",
        place / "venv" / "bin" / "python",
        "-r",
        requirements,
    ]
    done = run(install, cwd=place, env=environ, limit_s=LIMIT_S) if venv.is_done else venv
    return "" if done.is_done else f"does not install: {published(done.said, 200)}"


def _import(names: list[str], place: Path) -> str:
    code = "; ".join(f"import {name}" for name in names)
    environ = clean(os.environ, home=place, proxy=None)
    done = run([place / "venv" / "bin" / "python", "-c", code], cwd=place, env=environ, limit_s=300)
    return "yes" if done.is_done else f"no: {published(done.said.splitlines()[-1] if done.said else 'no message', 200)}"
