"""The developer's front door: `nox -l` lists the sessions, `nox` runs those that every change must pass.

Every session installs the development environment from envspec's own lock for this Python and platform
(`locks/dev-X.Y/`), hashes required, and then the project without dependencies.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["lint", "types", "imports", "lock_check", "tests"]
nox.options.default_venv_backend = "uv|venv"
nox.options.error_on_external_run = True

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CHECKED = ("envspec", "tests", "bench", "noxfile.py")
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
    """The tests that need no network but loopback; arguments go to pytest."""
    develop(session)
    session.run("pytest", *(session.posargs or ["-m", "not network and not engine"]))


@nox.session
def engine(session: nox.Session) -> None:
    """The tests that need a container engine, a registry, or a base image made here; arguments go to pytest.

    `.ci/with-engine nox -s engine` installs and starts what is missing. A test that can't have what it needs is skipped
    with the reason. All of it takes 30 GB of disk and the package index; `-- -m "engine and not network"` neither.
    """
    develop(session)
    session.run("pytest", *(session.posargs or ["-m", "engine"]))


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
    output = [] if session.posargs else ["--output", "docs/install-locks.md"]
    session.run("python", "-m", "bench.install_locks", *session.posargs, *output)


@nox.session
def bench(session: nox.Session) -> None:
    """Side by side with the peers; arguments go to `python -m bench.lock`."""
    develop(session)
    session.run("python", "-m", "bench.lock", *session.posargs, success_codes=[0, 1])
