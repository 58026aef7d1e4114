"""Installs committed locks into empty environments and imports what their specs name: `python -m bench.install_locks`.

Each linux-64 lock, by `envspec install`, and where it has no conda packages by `uv pip install --require-hashes` and
`pip install --require-hashes`, on a machine without a GPU: CUDA builds run their CPU half. An environment takes up to
8 GB; there is one at a time, and it is deleted after.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import Command, Cost, NotHere, clean, describe, published, run, say, table, uv
from bench.peers import Setup
from envspec.lockfile.document import load
from envspec.lockfile.export.requirements import requirements_name
from envspec.lockfile.header import LOCK_FILE
from envspec.models import SPEC, Platform, Resolution
from envspec.structs import replace

LIMIT_S: Final = 1200
INSTALLERS: Final = ("envspec", "uv", "pip")
#: envspec's exit code where a channel or an index can't be reached.
_NETWORK: Final = 5

#: Runs in the environment: what the distributions that the spec names provide, each imported. The module of the
#: distribution's own name where it has one; all public ones else. One of commands alone provides none, and is named.
#: The files are looked through, since importlib's own table knows only top_level.txt in Python 3.10, and few have that.
IMPORT: Final = """
import importlib, json, sys
from importlib.metadata import distribution
def modules_of(name):
    held = distribution(name)
    found = set((held.read_text("top_level.txt") or "").split())
    for file in held.files or ():
        folders, stem = file.parts[:-1], file.name.split(".")[0]
        if not folders and file.suffix in (".py", ".so", ".pyd"):
            found.add(stem)
        elif len(folders) == 1 and file.name == "__init__.py":
            found.add(folders[0])
    return sorted(module for module in found if module.isidentifier() and not module.startswith("_"))
done, without = [], []
for name in sys.argv[1:]:
    modules = modules_of(name)
    own = [m for m in modules if m.replace("_", "-").lower() == name]
    for module in own or modules:
        try:
            importlib.import_module(module)
        except BaseException as fault:
            raise SystemExit(f"import {module}: {type(fault).__name__}: {fault}")
        done.append(module)
    if not modules:
        without.append(name)
print(json.dumps([done, without]))
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one lock and one installer. A step that was not reached says so; `ok` is a step that went well."""

    lock: str
    python: str
    packages: int
    installer: str
    seconds: float = 0.0
    install: str = "not run"
    check: str = "not run"
    imports: str = "not run"

    @property
    def is_well(self) -> bool:
        return self.install == self.check == "ok" and self.imports.startswith("ok")


def try_lock(folder: Path, installer: str, setup: Setup) -> Outcome | None:
    """Install, check and import one lock by one installer; None for a lock that the installer or Linux cannot use."""
    lock = load((folder / LOCK_FILE).read_text(encoding="utf-8"), folder.name)
    mine = next((item for item in lock.resolutions if item.target.platform is Platform.LINUX_64), None)
    if mine is None or (mine.conda and installer != "envspec"):
        # Other installers' files are for conda first; the wheels alone are no environment.
        return None
    python, base = mine.target.python, None
    about = python.version
    if not mine.conda:
        try:
            base = setup.python(python.series)
        except NotHere as why:
            return Outcome(folder.name, about, len(mine.packages), installer, install=f"not run: {why}")
        about += f" (on {_version(base)})"
    known = Outcome(folder.name, about, len(mine.packages) + len(mine.conda), installer)
    place = setup.root / "environment"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        return _steps(known, place, base, folder.resolve(), mine)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _steps(known: Outcome, place: Path, base: Path | None, lock: Path, resolution: Resolution) -> Outcome:
    """base: the Python of a lock without conda."""

    def called(*command: str | Path, stdout: Path | None = None) -> Cost:
        return run(command, cwd=place, env=clean(os.environ, home=place), limit_s=LIMIT_S, stdout=stdout)

    venv = place / "venv"
    own = venv / "bin" / "python"
    # pip's commands, by pip itself or by uv.
    pip: Command = [own, "-m", "pip"] if known.installer == "pip" else [uv(), "pip"]
    of: Command = [] if known.installer == "pip" else ["--python", own]
    if base is None or known.installer == "envspec":
        python: Command = ["--python", base] if base else []
        done = called(sys.executable, "-m", "envspec", "install", lock, "--prefix", venv, *python)
    else:
        done = called(uv(), "venv", "--quiet", "--seed", "--python", base, venv)
        if done.is_done:
            cache = ["--no-cache-dir"] if known.installer == "pip" else []
            requirements = lock / requirements_name(Platform.LINUX_64)
            done = called(*pip, "install", *of, "--quiet", *cache, "--require-hashes", "-r", requirements)
    if not done.is_done:
        return replace(known, seconds=done.wall_s, install=f"{_not_run(done, resolution)}{_fault(done)}")
    checked = called(*pip, "check", *of)
    out = place / "modules.json"
    imported = called(own, "-c", IMPORT, *asked_for(resolution), stdout=out)
    modules, without = json.loads(out.read_text().splitlines()[-1]) if imported.is_done else ([], [])
    imports = f"ok: {', '.join(modules)}" if imported.is_done else _fault(imported)
    if without:
        imports += f"; nothing to import in {', '.join(without)}"
    check = "ok" if checked.is_done else _fault(checked)
    return replace(known, seconds=done.wall_s, install="ok", check=check, imports=imports)


def _not_run(install: Cost, resolution: Resolution) -> str:
    # A lock is for an exact patch of Python: an older one may not do, which says nothing against the lock.
    # In uv's words (0.13), then in pip's (26).
    if re.search(r"does not\s+satisfy\s+Python|require a different python version", install.output):
        return "not run: the patch at hand is too old for a package; "
    if resolution.conda and install.exit_code == _NETWORK:
        return "not run: no channel can be reached from here; "
    return ""


def _version(python: Path) -> str:
    asked = [str(python), "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def asked_for(resolution: Resolution) -> list[str]:
    """Names that the spec itself asks for; pip last.

    Before Python 3.12, setuptools fails in a process that has imported pip: pip turns off the distutils that
    setuptools brings, and setuptools then asserts that it has its own (_distutils_hack).
    """
    names = [
        package.name for package in resolution.packages if any(asker.name == SPEC for asker in package.required_by)
    ]
    by_spec = [each for each in resolution.conda if any(one.name == SPEC for one in each.required_by)]
    names += [provided.name for package in by_spec for provided in package.provides]
    return sorted(names, key="pip".__eq__)


def _fault(cost: Cost) -> str:
    end = "over its limit" if cost.exit_code is None else f"exit {cost.exit_code}"
    return f"{end}: {' '.join(published(cost.output, 300).split())}"


def page(outcomes: Sequence[Outcome], about: dict[str, str]) -> str:
    """The outcomes as a Markdown page."""
    head = ["lock", "Python", "packages", "installer", "install", "seconds", "pip check", "imports"]
    rows = [
        [o.lock, o.python, str(o.packages), o.installer, o.install, f"{o.seconds:.0f}", o.check, o.imports]
        for o in outcomes
    ]
    facts = " · ".join(f"{key}: {value}" for key, value in about.items())
    intro = (
        "Each committed linux-64 lock, installed with required hashes into an empty environment of its Python series,\n"
        "and the import of what its spec names. Another patch release than the lock's is in parentheses.\n"
        "Written by `nox -s install_locks`."
    )
    return "\n".join(["# Installation of the committed locks", "", intro, "", facts, "", *table(head, rows), ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the locks; 0 when every one that could be tried is well (what could not says why), 1 else."""
    options = _options().parse_args(arguments)
    locks = Path("locks")
    folders = [locks / name for name in options.names] or sorted(path.parent for path in locks.glob(f"*/{LOCK_FILE}"))
    if not folders:
        sys.stderr.write(f"{locks}/ holds no lock: run `envspec lock` first\n")
        return 2
    setup = Setup(Path(tempfile.gettempdir()) / f"envspec-install-{os.getuid()}")
    outcomes = []
    for folder in folders:
        for installer in options.by:
            outcome = try_lock(folder, installer, setup)
            if outcome is not None:
                outcomes.append(outcome)
                say(f"{outcome.lock}, {outcome.installer}: {outcome.install}; {outcome.check}; {outcome.imports}")
    if options.output:
        Path(options.output).write_text(page(outcomes, describe()), encoding="utf-8")
    tried = [outcome for outcome in outcomes if not outcome.install.startswith("not run")]
    return 0 if all(outcome.is_well for outcome in tried) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.install_locks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="folders under locks/ (all)")
    parser.add_argument("--by", nargs="+", choices=INSTALLERS, default=list(INSTALLERS), help="installers (all)")
    parser.add_argument("--output", help="a Markdown file for the table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
