"""The sessions of development: `nox -l` lists them, `nox` runs those that every change must pass.

Every session installs the development environment from envspec's own lock for this Python and platform
(`locks/dev-X.Y/`), hashes required, and then the project without dependencies.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nox
import nox.command
import nox.project

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "types", "imports", "lock_check", "docs", "tests"]
nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_external_run = True

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CHECKED = ("envspec", "tests", "bench", "docs/conf.py", "noxfile.py")
SITE = Path("build", "site")
SITE_BYTES = 10_000_000
#: What the tests of `tests` and `docs_tests` do not need.
WITHOUT = ("-m", "not network and not engine and not stack")
#: Of pytest: two processes for each core, since a third of the time is spent waiting for servers and ends of processes;
#: at most eight. Tests share no port, folder or cache.
PARALLEL = ("-n", str(min(8, 2 * (os.cpu_count() or 1))), "--dist", "worksteal")
#: What of PIP_* and UV_* a session keeps: it says how to reach an index, not which.
KEPT = (
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_CACHE_DIR",
    "UV_CACHE_DIR",
    "UV_HTTP_TIMEOUT",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
)


def subdir() -> str:
    """This machine's conda subdir."""
    machine = platform.machine().lower()
    system = {"linux": "linux", "darwin": "osx", "win32": "win"}.get(sys.platform, sys.platform)
    word = {"x86_64": "64", "amd64": "64", "arm64": "arm64"}.get(machine, machine)
    return f"{system}-{word}"


def shut_out(session: nox.Session) -> None:
    """Nothing of this machine's pip or uv configuration reaches a session: neither files nor variables."""
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")) and name not in KEPT:
            session.env[name] = None
    session.env["PIP_CONFIG_FILE"] = os.devnull
    session.env["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    session.env["UV_NO_CONFIG"] = "1"


def develop(session: nox.Session) -> None:
    """The locked development environment, and the project itself in place."""
    shut_out(session)
    lock = Path("locks", f"dev-{PYTHON}", f"requirements.{subdir()}.txt")
    if not lock.exists():
        session.error(f"{lock} is not there: no development lock for Python {PYTHON} on {subdir()}")
    session.install("--require-hashes", "--no-deps", "-r", str(lock))
    # The build backend is in the lock as well: an isolated build would fetch an unlocked one.
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


@nox.session
def tests(session: nox.Session) -> None:
    """The tests that need no network but loopback, on all cores; arguments go to pytest instead."""
    develop(session)
    session.run("pytest", *(session.posargs or [*PARALLEL, *WITHOUT, "--ignore", "tests/docs"]))


@nox.session
def docs_tests(session: nox.Session) -> None:
    """The tests of documents: their commands and code run, their diffs apply; arguments go to pytest instead.

    Run it when a page, a message or a help text changes.
    """
    develop(session)
    session.run("pytest", *(session.posargs or [*PARALLEL, *WITHOUT, "tests/docs"]))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into build/site, offline: a link or an anchor that leads nowhere is an error.

    `-- -b linkcheck` requests the links to other sites instead, and needs a network.
    """
    develop(session)
    shutil.rmtree(SITE, ignore_errors=True)
    options = ("-q", "-W", "--keep-going", "-j", "auto", "-d", "build/doctrees")
    session.run("sphinx-build", *options, "docs", str(SITE), *session.posargs)
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    if size > SITE_BYTES:
        session.error(f"the site has {size / 1e6:.1f} MB, more than {SITE_BYTES / 1e6:.0f}")


@nox.session
def engine(session: nox.Session) -> None:
    """The tests that need a container engine, a registry, Slurm, or a base image made here; arguments go to pytest.

    `.ci/with-engine nox -s engine` installs and starts what is missing. A test that can't have what it needs is skipped
    with the reason. All of it takes 30 GB of disk and the package index; `-- -m "engine and not network"` neither.
    """
    develop(session)
    session.run("pytest", *(session.posargs or ["-m", "engine"]))


@nox.session
def stack(session: nox.Session) -> None:
    """The tests of the conformance suite on real torch stacks, installed from their locks; arguments go to pytest.

    8 GB of disk for each stack, and the package index for the first time; no GPU is needed.
    """
    develop(session)
    session.run("pytest", *(session.posargs or ["-m", "stack and not engine"]))


@nox.session
def gpu_conformance(session: nox.Session) -> None:
    """Prove that this machine runs the specs: `-- [SPEC | LOCK ...] [options of envspec conformance]`.

    For each spec the lock is checked, its image made, the suite run in it, and the receipt written to
    `receipts/<name>/`. A LOCK is that of another tool by its path, such as `../project/uv.lock`. Without a SPEC:
    every spec under specs/ that fits this machine. Without Docker or Podman:
    `-- SPEC --local --python PATH`, with the Python of `envspec install SPEC --prefix DIR`.
    """
    develop(session)
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), session.posargs))
    options = session.posargs[len(words) :]
    locks = [word for word in words if _is_lock_of_another_tool(word)]
    specs = [_spec_file(session, word) for word in words if word not in locks]
    if not words:
        specs = list(_fitting(session))
    if not specs and not locks:
        session.error("no spec under specs/ fits this machine: name one, with --device cpu if it has no GPU")
    failed = []
    named = {_lock_name(spec): spec for spec in specs}
    for lock in locks:
        named[Path(lock).absolute().parent.name] = Path(lock)
    for name, path in named.items():
        try:
            argument = str(path)
            if argument not in locks:
                session.run("envspec", "lock", "--check", argument)
                argument = name
            session.run("envspec", "conformance", argument, "--report", f"receipts/{name}", *options)
        except nox.command.CommandFailed as fault:
            # The others have something to say as well.
            session.warn(f"{name}: {fault}")
            failed.append(name)
    if failed:
        session.error(f"conformance failed: {', '.join(failed)}")


@nox.session(venv_backend="none")
def gpu_day(session: nox.Session) -> None:
    """The first half hour on a GPU machine without a network: `-- [STEP...] [--device cpu]` of bench/gpu_day.py.

    The Python that runs nox is tested, or `-- --python PATH`; nothing is installed.
    """
    session.run(sys.executable, "bench/gpu_day.py", *session.posargs, external=True)


def _is_lock_of_another_tool(word: str) -> bool:
    name = Path(word).name
    return Path(word).is_file() and (name.endswith((".lock", ".txt")) or name.startswith("pylock."))


def _spec_file(session: nox.Session, word: str) -> Path:
    path = Path(word) if word.endswith(".toml") else Path("specs", f"{word}.toml")
    if not path.exists():
        session.error(f"there is no spec {path}")
    return path


def _lock_name(spec: Path) -> str:
    return str(nox.project.load_toml(spec)["env"]["name"])


def _fitting(session: nox.Session) -> Iterator[Path]:
    """Specs with CUDA whose lock this machine runs."""
    for spec in sorted(Path("specs").glob("*.toml")):
        if "cuda" not in nox.project.load_toml(spec):
            continue
        # 6: this machine can't run it; any other failure is one of this session's.
        printed = session.run("envspec", "fit", _lock_name(spec), "--format", "json", silent=True, success_codes=[0, 6])
        if '"verdict": "does not fit"' not in str(printed):
            yield spec


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    develop(session)
    session.run("ruff", "check", *CHECKED)
    session.run("ruff", "format", "--check", *CHECKED)


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict."""
    develop(session)
    session.run("mypy", "--strict", *CHECKED)


@nox.session
def imports(session: nox.Session) -> None:
    """The direction of imports."""
    develop(session)
    session.run("lint-imports")


@nox.session
def lock_check(session: nox.Session) -> None:
    """Every committed lock belongs to its spec, byte for byte; no network."""
    develop(session)
    session.run("envspec", "lock", "--check", *map(str, sorted(Path("specs").glob("*.toml"))))


@nox.session
def install_locks(session: nox.Session) -> None:
    """Install committed linux-64 locks and import what their specs name; arguments are names under locks/."""
    develop(session)
    output = [] if session.posargs else ["--output", "docs/measurements/install-locks.md"]
    session.run("python", "-m", "bench.install_locks", *session.posargs, *output)


@nox.session
def bench(session: nox.Session) -> None:
    """Side by side with the peers; arguments go to `python -m bench.lock`."""
    develop(session)
    session.run("python", "-m", "bench.lock", *session.posargs, success_codes=[0, 1])
