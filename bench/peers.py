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
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Final

import tomlkit
from packaging.utils import canonicalize_name

from bench.harness import NotHere, clean, uv
from envspec.documents import parse_toml

Command = list[str | Path]

# ------------------------------------------------------------------------------------------------------------- stacks

FOLDER: Final = Path(__file__).parent / "stacks"
DEFAULT: Final = ("s26", "s27", "s28", "s29", "g")
#: Small, and asked for by none of the stacks: one is added each round, so that none is in a cache when its turn comes.
ADDED: Final = ("humanize", "toolz", "inflection", "sortedcontainers", "iniconfig", "blinker", "itsdangerous", "roman")


@dataclass(frozen=True)
class Stack:
    """One request. spec: the text of envspec's spec, from which the peers' requests are made."""

    name: str
    spec: str

    @property
    def python(self) -> str:
        """A series."""
        return str(parse_toml(self.spec)["env"]["python"])

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
        return self._with("pip", "dependencies", [*self.requirements, requirement])

    def on(self, *platforms: str) -> Stack:
        """The same request for other platforms."""
        return self._with("env", "platforms", list(platforms))

    def _with(self, table: str, key: str, value: list[str]) -> Stack:
        document = tomlkit.parse(self.spec)
        document[table][key] = value
        return Stack(self.name, tomlkit.dumps(document))


def load_stack(name: str) -> Stack:
    """Read `bench/stacks/NAME.toml`."""
    return Stack(name, (FOLDER / f"{name}.toml").read_text(encoding="utf-8"))


def stack_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


# -------------------------------------------------------------------------------------------------------------- peers


class Pace(Enum):
    """How often a tool is run: a slow one goes through its scenarios once (`--slow-runs`)."""

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
    again: what says that nothing changed, where there is another command for it. environ: variables it needs.
    note: what its numbers cannot be compared in.
    """

    name: str
    packages: tuple[str, ...]
    result: str
    prepare: Callable[[Job], None]
    lock: Callable[[Job], Command]
    again: Callable[[Job], Command] | None = None
    environ: Callable[[Job], Mapping[str, str]] = lambda _: {}
    pace: Pace = Pace.QUICK
    interpreter: Interpreter = Interpreter.SERIES
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
    _pyproject(job, f'[tool.uv]\npackage = false\nno-build = true\nexclude-newer = "{job.as_of}"\n')


def _poetry_project(job: Job) -> None:
    _pyproject(job, "[tool.poetry]\npackage-mode = false\n")


def _poetry_project_with_source(job: Job) -> None:
    source = f'[[tool.poetry.source]]\nname = "index"\nurl = "{job.index}"\npriority = "primary"\n'
    _pyproject(job, f"[tool.poetry]\npackage-mode = false\n{source}")


def _envspec_spec(job: Job) -> None:
    (job.folder / "spec.toml").write_text(job.stack.spec)


def _uv_compile(job: Job) -> Command:
    return [
        job.bin / "uv",
        *("pip", "compile", "requirements.in", "-o", "requirements.txt", "--quiet"),
        *("--generate-hashes", "--only-binary", ":all:", "--exclude-newer", job.as_of),
        *("--python", job.python, "--python-version", job.stack.python, "--python-platform", "x86_64-manylinux_2_39"),
        *("--cache-dir", job.cache),
    ]


def _uv_lock(job: Job) -> Command:
    return [job.bin / "uv", "lock", "--quiet", "--python", job.python, "--cache-dir", job.cache]


def _pip_compile(job: Job) -> Command:
    return [
        job.bin / "pip-compile",
        *("requirements.in", "-o", "requirements.txt", "--quiet", "--generate-hashes", "--strip-extras"),
        *("--no-emit-index-url", "--cache-dir", job.cache / "pip-tools"),
        "--pip-args=--only-binary=:all:",
    ]


def _pip_compile_best(job: Job) -> Command:
    return [*_pip_compile(job)[:-1], "--pip-args=--only-binary=:all: --use-feature=fast-deps"]


def _pip_lock(job: Job) -> Command:
    return [job.bin / "pip", "lock", "--quiet", "-r", "requirements.in", "-o", "pylock.toml", "--only-binary", ":all:"]


def _envspec_lock(job: Job) -> Command:
    return [job.bin / "envspec", "lock", "spec.toml", "--output", job.folder / "lock"]


def _pip(name: str, package: str, result: str, lock: Callable[[Job], Command], note: str = "") -> Peer:
    def environ(job: Job) -> Mapping[str, str]:
        return {"PIP_CACHE_DIR": str(job.cache / "pip")}

    return Peer(name, (package,), result, _requirements_in, lock, None, environ, Pace.SLOW, note=f"{_TODAY}{note}")


def _poetry(name: str, prepare: Callable[[Job], None], note: str) -> Peer:
    def environ(job: Job) -> Mapping[str, str]:
        return {"POETRY_CACHE_DIR": str(job.cache), "POETRY_VIRTUALENVS_CREATE": "false", "POETRY_NO_INTERACTION": "1"}

    return Peer(
        name,
        ("poetry",),
        "poetry.lock",
        prepare,
        lambda job: [job.bin / "poetry", "lock", "--no-ansi"],
        lambda job: [job.bin / "poetry", "check", "--lock"],
        environ,
        Pace.SLOW,
        note=f"{_TODAY}; universal; {note}",
    )


def _pdm_environ(job: Job) -> Mapping[str, str]:
    return {
        "PDM_CACHE_DIR": str(job.cache),
        "PDM_PYTHON": str(job.python),
        "PDM_CHECK_UPDATE": "0",
        "PDM_ONLY_BINARY": ":all:",
        "PDM_PYPI_URL": job.index,
    }


_TODAY: Final = "resolves for today, not for the stack's `as_of`"

_ALL: Final = (
    Peer("uv pip compile", ("uv",), "requirements.txt", _requirements_in, _uv_compile, interpreter=Interpreter.ANY),
    Peer(
        "uv lock",
        ("uv",),
        "uv.lock",
        _uv_project,
        _uv_lock,
        lambda job: [*_uv_lock(job), "--check"],
        note="universal: all platforms in one lock",
    ),
    Peer(
        "envspec",
        (),
        "lock",
        _envspec_spec,
        _envspec_lock,
        lambda job: [*_envspec_lock(job), "--check"],
        lambda job: {"ENVSPEC_CACHE_DIR": str(job.cache)},
        interpreter=Interpreter.ANY,
    ),
    _pip("pip-compile", "pip-tools", "requirements.txt", _pip_compile, "; plain flags"),
    _pip("pip-compile (best flags)", "pip-tools", "requirements.txt", _pip_compile_best, "; `--use-feature=fast-deps`"),
    _pip("pip lock", "pip", "pylock.toml", _pip_lock),
    _poetry("poetry", _poetry_project, "its default source, which needs the index's JSON interface"),
    _poetry("poetry (simple pages)", _poetry_project_with_source, "the same index as a source of simple pages"),
    Peer(
        "pdm",
        ("pdm[locked]",),
        "pdm.lock",
        _pyproject,
        lambda job: [job.bin / "pdm", "lock", "--quiet"],
        lambda job: [job.bin / "pdm", "lock", "--quiet", "--check"],
        _pdm_environ,
        Pace.SLOW,
        note=f"{_TODAY} (its `--exclude-newer` finds nothing on an index that dates HTML pages only)",
    ),
)
PEERS: Final[Mapping[str, Peer]] = {peer.name: peer for peer in _ALL}


# ------------------------------------------------------------------------------------------------ what a tool locked

FAMILY: Final = ("torch", "torchvision", "torchaudio", "torchtext")


def pins_of(result: Path) -> dict[str, str]:
    """Name -> version; a universal lock's several versions of one name come joined with `|`.

    result: a requirements file, a TOML lock (`[[package]]` or `[[packages]]`), or envspec's folder (linux-64's file).
    """
    if result.is_dir():
        return _requirement_pins(result / "requirements.linux-64.txt")
    return _requirement_pins(result) if result.suffix == ".txt" else _toml_pins(result)


def family_of(pins: dict[str, str]) -> dict[str, str]:
    return {name: pins[name] for name in FAMILY if name in pins}


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


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything lies under `root`; tools are kept between runs, homes and caches are not."""

    root: Path

    def job(self, peer: Peer, stack: Stack, index: str = "") -> Job:
        """A fresh folder and an installed tool. index: simple pages that replace the default index's.

        Raises:
            NotHere: no interpreter of the stack's series, or the tool does not install.
        """
        python = own_python() if peer.interpreter is Interpreter.ANY else self.python(stack.python)
        folder = self.root / "jobs" / _slug(f"{stack.name}-{peer.name}")
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("project", "home"):
            (folder / part).mkdir(parents=True)
        tools = self._tool(peer, python)
        return Job(stack, folder / "project", folder / "home" / "cache", python, tools, index or default_index())

    def environ(self, peer: Peer, job: Job, proxy: str | None) -> Mapping[str, str]:
        """Variables of a measured command. proxy: URL of the counting proxy, None for the direct way."""
        base = clean(os.environ, home=job.folder.parent / "home", proxy=proxy)
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


def default_index() -> str:
    """The default index's simple pages, as pip names them: the address is not written down here."""
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/") + "/"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
