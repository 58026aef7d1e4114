"""The tools that `bench.lock` measures and the stacks that they lock: how each is installed, called and read.

A new tool is one entry of `PEERS`, a new stack a spec in `bench/stacks/`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Final

import tomlkit
from packaging.utils import canonicalize_name

from bench.harness import NotHere, clean, default_index, uv
from envspec.documents import parse_toml
from envspec.facts import load_facts
from envspec.models import Target
from envspec.spec.load import parse_spec
from envspec.spec.targets import targets_of

Command = list[str | Path]

# ------------------------------------------------------------------------------------------------------------- stacks

FOLDER: Final = Path(__file__).parent / "stacks"
DEFAULT: Final = ("s26", "s27-no-text", "s28", "s29", "g")
#: One request for four platforms, which tools of one platform lock for linux-64.
FOUR: Final = "four"
#: Small, and in none of the stacks.
ADDED: Final = "humanize"


@dataclass(frozen=True)
class Stack:
    """One request. spec: the text of envspec's spec, from which the other tools' requests are made."""

    name: str
    spec: str

    @property
    def python(self) -> str:
        """A series."""
        return str(parse_toml(self.spec)["env"]["python"])

    @cached_property
    def target(self) -> Target:
        """What envspec locks linux-64 for: the exact Python and the glibc."""
        spec = parse_spec(self.spec, self.name, datetime.now(timezone.utc))
        targets, _ = targets_of(spec, load_facts())
        return targets[0]

    @property
    def as_of(self) -> datetime:
        """Nothing newer is considered."""
        moment: datetime = parse_toml(self.spec)["env"]["as_of"]
        return moment.astimezone(timezone.utc)

    @property
    def requirements(self) -> list[str]:
        return list(parse_toml(self.spec)["pip"]["dependencies"])

    def plus(self, requirement: str) -> Stack:
        """The same request with one more package."""
        document = tomlkit.parse(self.spec)
        document["pip"]["dependencies"] = [*self.requirements, requirement]
        return Stack(self.name, tomlkit.dumps(document))


def load_stack(name: str) -> Stack:
    """Read `bench/stacks/NAME.toml`."""
    return Stack(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def stack_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


# -------------------------------------------------------------------------------------------------------------- peers


class Pace(Enum):
    """How often a tool is run: a slow one `--slow-runs` times, with empty caches only."""

    QUICK = "quick"
    SLOW = "slow"


class Interpreter(Enum):
    """Which Python a tool runs on."""

    SERIES = "the stack's own: it resolves for the interpreter that runs it, or refuses to go on with another"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Job:
    """One request of one tool.

    folder: its own, where its project and result are. cache: emptied for a cold run.
    python: the interpreter, of the stack's series where the tool needs that.
    bin: where the tool's commands are. index: the default index's simple pages.
    """

    stack: Stack
    folder: Path
    cache: Path
    python: Path
    bin: Path
    index: str

    @property
    def as_of(self) -> str:
        return self.stack.as_of.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool in one way of using it.

    packages: what its own environment holds, of the stack's Python. result: what it writes in the job's folder.
    check: its command that checks the result, if it has one. environ: variables it needs.
    engine: a program that it runs and whose memory is measured apart. note: what makes its numbers hard to compare.
    """

    name: str
    packages: tuple[str, ...]
    result: str
    prepare: Callable[[Job], None]
    lock: Callable[[Job], Command]
    check: Callable[[Job], Command] | None = None
    environ: Callable[[Job], Mapping[str, str]] = lambda _: {}
    pace: Pace = Pace.QUICK
    interpreter: Interpreter = Interpreter.SERIES
    engine: str = ""
    note: str = ""


def _requirements_in(job: Job) -> None:
    (job.folder / "requirements.in").write_text("\n".join(job.stack.requirements) + "\n")


def _pyproject(job: Job, extra: str = "") -> None:
    dependencies = json.dumps(job.stack.requirements)
    (job.folder / "pyproject.toml").write_text(
        f'[project]\nname = "stack"\nversion = "0"\nrequires-python = "=={job.stack.python}.*"\n'
        f"dependencies = {dependencies}\n{extra}"
    )


def _uv_project(job: Job) -> None:
    _pyproject(job, "[tool.uv]\npackage = false\n")


def _poetry_project(job: Job) -> None:
    source = f'[[tool.poetry.source]]\nname = "index"\nurl = "{job.index}"\npriority = "primary"\n'
    _pyproject(job, f"[tool.poetry]\npackage-mode = false\n{source}")


def _envspec_spec(job: Job) -> None:
    (job.folder / "spec.toml").write_text(job.stack.spec)


def _uv_compile(job: Job) -> Command:
    glibc = job.stack.target.glibc
    assert glibc is not None
    return [
        job.bin / "uv",
        *("pip", "compile", "requirements.in", "-o", "requirements.txt", "--quiet"),
        *("--generate-hashes", "--only-binary", ":all:", "--exclude-newer", job.as_of),
        *("--python", job.python, "--python-version", job.stack.target.python.version),
        *("--python-platform", f"x86_64-manylinux_{glibc[0]}_{glibc[1]}", "--cache-dir", job.cache),
    ]


def _uv_lock(job: Job) -> Command:
    # Not in [tool.uv]: UV_NO_CONFIG hides it.
    limits = ("--no-build", "--exclude-newer", job.as_of)
    return [job.bin / "uv", "lock", "--quiet", "--python", job.python, "--cache-dir", job.cache, *limits]


def _pip_compile(job: Job) -> Command:
    return [
        job.bin / "pip-compile",
        *(
            "requirements.in",
            "-o",
            "requirements.txt",
            "--quiet",
            "--generate-hashes",
            "--strip-extras",
            "--allow-unsafe",
        ),
        *("--no-emit-index-url", "--cache-dir", job.cache / "pip-tools", "--uploaded-prior-to", job.as_of),
        "--pip-args=--only-binary=:all:",
    ]


def _pip_compile_fast(job: Job) -> Command:
    return [*_pip_compile(job)[:-1], "--pip-args=--only-binary=:all: --use-feature=fast-deps"]


def _pip_lock(job: Job) -> Command:
    return [
        job.bin / "pip",
        *("lock", "--quiet", "-r", "requirements.in", "-o", "pylock.toml", "--only-binary", ":all:"),
        *("--uploaded-prior-to", job.as_of),
    ]


def _envspec_lock(job: Job) -> Command:
    return [job.bin / "envspec", "lock", "spec.toml", "--output", job.folder / "lock"]


def _envspec_environ(job: Job) -> Mapping[str, str]:
    # Of a checkout that is not the installed one.
    checkout = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {"ENVSPEC_CACHE_DIR": str(job.cache), **checkout}


def _pip_environ(job: Job) -> Mapping[str, str]:
    # pip-compile looks for the index's JSON pages next to this address.
    return {"PIP_CACHE_DIR": str(job.cache / "pip"), "PIP_INDEX_URL": job.index.rstrip("/")}


def _pip(name: str, package: str, result: str, lock: Callable[[Job], Command]) -> Peer:
    note = "resolves for the Python that runs it: the stack's series, the machine's patch"
    return Peer(name, (package,), result, _requirements_in, lock, environ=_pip_environ, pace=Pace.SLOW, note=note)


def _pdm_environ(job: Job) -> Mapping[str, str]:
    return {
        "PDM_CACHE_DIR": str(job.cache),
        "PDM_PYTHON": str(job.python),
        "PDM_CHECK_UPDATE": "0",
        "PDM_ONLY_BINARY": ":all:",
        "PDM_PYPI_URL": job.index,
    }


def _poetry_environ(job: Job) -> Mapping[str, str]:
    age = datetime.now(timezone.utc) - job.stack.as_of
    return {
        "POETRY_CACHE_DIR": str(job.cache),
        "POETRY_VIRTUALENVS_CREATE": "false",
        "POETRY_NO_INTERACTION": "1",
        "POETRY_SOLVER_MIN_RELEASE_AGE": str(age.days + 1),
    }


_UNIVERSAL: Final = "universal: all platforms in one lock"

_ALL: Final = (
    Peer("uv pip compile", ("uv",), "requirements.txt", _requirements_in, _uv_compile, interpreter=Interpreter.ANY),
    Peer(
        "uv lock", ("uv",), "uv.lock", _uv_project, _uv_lock, lambda job: [*_uv_lock(job), "--check"], note=_UNIVERSAL
    ),
    Peer(
        "envspec",
        (),
        "lock",
        _envspec_spec,
        _envspec_lock,
        lambda job: [*_envspec_lock(job), "--check"],
        _envspec_environ,
        interpreter=Interpreter.ANY,
        engine="uv",
    ),
    _pip("pip-compile", "pip-tools", "requirements.txt", _pip_compile),
    _pip("pip-compile with fast-deps", "pip-tools", "requirements.txt", _pip_compile_fast),
    _pip("pip lock", "pip", "pylock.toml", _pip_lock),
    Peer(
        "poetry",
        ("poetry",),
        "poetry.lock",
        _poetry_project,
        lambda job: [job.bin / "poetry", "lock", "--no-ansi"],
        environ=_poetry_environ,
        pace=Pace.SLOW,
        note=f"{_UNIVERSAL}; its cutoff is a number of days, up to one day before the stack's `as_of`",
    ),
    Peer(
        "pdm",
        ("pdm[locked]",),
        "pdm.lock",
        _pyproject,
        lambda job: [job.bin / "pdm", "lock", "--quiet", "--exclude-newer", job.as_of],
        environ=_pdm_environ,
        pace=Pace.SLOW,
        note=_UNIVERSAL,
    ),
)
PEERS: Final[Mapping[str, Peer]] = {peer.name: peer for peer in _ALL}


# ------------------------------------------------------------------------------------------------ what a tool locked


def pins_of(result: Path) -> dict[str, str]:
    """Name -> version; a universal lock's several versions of one name come joined with `|`.

    result: a requirements file, a TOML lock (`[[package]]` or `[[packages]]`), or envspec's folder (linux-64's file).
    """
    if result.is_dir():
        return _requirement_pins(result / "requirements.linux-64.txt")
    return _requirement_pins(result) if result.suffix == ".txt" else _toml_pins(result)


def _requirement_pins(file: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", file.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def _toml_pins(file: Path) -> dict[str, str]:
    document = parse_toml(file.read_text())
    versions: dict[str, set[str]] = {}
    for row in document.get("package") or document.get("packages") or []:
        # uv.lock lists the project itself as a package; only its source says so.
        if "version" in row and not {"virtual", "editable"} & set(row.get("source", {})):
            versions.setdefault(canonicalize_name(row["name"]), set()).add(row["version"])
    return {name: "|".join(sorted(found)) for name, found in versions.items()}


# ------------------------------------------------------------------------------------- interpreters and environments


_CERTIFICATES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything is under `root`; tools are kept between runs, homes and caches are not.

    index: simple pages of all jobs. certificate: the only one that tools trust; None for the machine's.
    """

    root: Path
    index: str = field(default_factory=default_index)
    certificate: Path | None = None

    def job(self, peer: Peer, stack: Stack) -> Job:
        """A fresh folder and an installed tool.

        Raises:
            NotHere: no interpreter of the stack's series, or the tool does not install.
        """
        python = own_python() if peer.interpreter is Interpreter.ANY else self.python(stack.python)
        folder = self.root / "jobs" / _slug(f"{stack.name}-{peer.name}")
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("project", "home"):
            (folder / part).mkdir(parents=True)
        tools = self._tool(peer, python)
        return Job(stack, folder / "project", folder / "home" / "cache", python, tools, self.index)

    def environ(self, peer: Peer, job: Job) -> Mapping[str, str]:
        """Variables of a measured command."""
        base = clean(os.environ, home=job.folder.parent / "home")
        if self.certificate is not None:
            base |= dict.fromkeys(_CERTIFICATES, str(self.certificate))
            base.pop("SSL_CERT_DIR", None)
        path = os.pathsep.join([str(job.bin), base.get("PATH", os.defpath)])
        names = ("ENVSPEC_DEFAULT_INDEX", "UV_DEFAULT_INDEX") if job.index != default_index() else ()
        own = {**dict.fromkeys(names, job.index), **peer.environ(job)}
        return {**base, "PATH": path, "VIRTUAL_ENV": str(job.bin.parent), **own}

    def python(self, series: str) -> Path:
        """An interpreter of this series that is on the machine already.

        Raises:
            NotHere: there is none.
        """
        if series == ".".join(map(str, sys.version_info[:2])):
            return own_python()
        found = self._run([uv(), "python", "find", "--no-python-downloads", "--system", "--no-project", series])
        if found.returncode != 0:
            raise NotHere(f"no interpreter of Python {series} on this machine")
        return Path(found.stdout.strip())

    def _tool(self, peer: Peer, python: Path) -> Path:
        """The folder of the tool's commands; envspec's is that of the environment that runs this."""
        if not peer.packages:
            return Path(sys.executable).parent
        key = hashlib.sha256(f"{python}{peer.packages}".encode()).hexdigest()[:8]
        place = self.root / "tools" / _slug(f"{peer.packages[0]}-{key}")
        if not (place / "ready").exists():
            self._must([uv(), "venv", "--quiet", "--clear", "--seed", "--python", python, place], peer)
            packages = [*peer.packages, "pip"]
            install = ["pip", "install", "--quiet", "--compile-bytecode", "--upgrade", "--python"]
            self._must([uv(), *install, place / "bin" / "python", *packages], peer)
            (place / "ready").touch()
        return place / "bin"

    def _must(self, command: list[str | Path], peer: Peer) -> None:
        done = self._run(command)
        if done.returncode != 0:
            raise NotHere(f"{peer.name} does not install: {done.stderr.strip()}")

    def _run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        home = self.root / "home"
        home.mkdir(parents=True, exist_ok=True)
        environ = clean(os.environ, home=home)
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=600)

    def version(self, peer: Peer, bin_folder: Path) -> str:
        """What the tool's package says of its version."""
        name = peer.packages[0].split("[")[0] if peer.packages else "envspec"
        code = f"from importlib.metadata import version; print(version({name!r}))"
        return self._run([bin_folder / "python", "-c", code]).stdout.strip()


def own_python() -> Path:
    """The interpreter behind this environment: a virtual environment is a poor base for others."""
    return Path(getattr(sys, "_base_executable", sys.executable))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
