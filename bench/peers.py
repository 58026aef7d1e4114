"""The tools that are measured: how each is installed, asked, and asked again. A new one is one entry of `PEERS`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from bench.stacks import Stack


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


Command = list[str | Path]


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
    dependencies = json.dumps(list(job.stack.requirements))
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


def _pip_cache(job: Job) -> Mapping[str, str]:
    return {"PIP_CACHE_DIR": str(job.cache / "pip")}


def _poetry_environ(job: Job) -> Mapping[str, str]:
    return {"POETRY_CACHE_DIR": str(job.cache), "POETRY_VIRTUALENVS_CREATE": "false", "POETRY_NO_INTERACTION": "1"}


def _pdm_environ(job: Job) -> Mapping[str, str]:
    return {
        "PDM_CACHE_DIR": str(job.cache),
        "PDM_PYTHON": str(job.python),
        "PDM_CHECK_UPDATE": "0",
        "PDM_ONLY_BINARY": ":all:",
        "PDM_PYPI_URL": job.index,
    }


_TODAY: Final = "resolves for today, not for the stack's `as_of`"

PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            "uv pip compile",
            ("uv",),
            "requirements.txt",
            _requirements_in,
            _uv_compile,
            interpreter=Interpreter.ANY,
        ),
        Peer(
            "uv lock",
            ("uv",),
            "uv.lock",
            _uv_project,
            _uv_lock,
            again=lambda job: [*_uv_lock(job), "--check"],
            note="universal: all platforms in one lock",
        ),
        Peer(
            "envspec",
            (),
            "lock",
            _envspec_spec,
            _envspec_lock,
            again=lambda job: [*_envspec_lock(job), "--check"],
            environ=lambda job: {"ENVSPEC_CACHE_DIR": str(job.cache)},
            interpreter=Interpreter.ANY,
        ),
        Peer(
            "pip-compile",
            ("pip-tools",),
            "requirements.txt",
            _requirements_in,
            _pip_compile,
            environ=_pip_cache,
            pace=Pace.SLOW,
            note=f"{_TODAY}; plain flags",
        ),
        Peer(
            "pip-compile (best flags)",
            ("pip-tools",),
            "requirements.txt",
            _requirements_in,
            _pip_compile_best,
            environ=_pip_cache,
            pace=Pace.SLOW,
            note=f"{_TODAY}; `--use-feature=fast-deps`",
        ),
        Peer(
            "pip lock",
            ("pip",),
            "pylock.toml",
            _requirements_in,
            _pip_lock,
            environ=_pip_cache,
            pace=Pace.SLOW,
            note=_TODAY,
        ),
        Peer(
            "poetry",
            ("poetry",),
            "poetry.lock",
            _poetry_project,
            lambda job: [job.bin / "poetry", "lock", "--no-ansi"],
            again=lambda job: [job.bin / "poetry", "check", "--lock"],
            environ=_poetry_environ,
            pace=Pace.SLOW,
            note=f"{_TODAY}; universal; its default source, which needs the index's JSON interface",
        ),
        Peer(
            "poetry (simple pages)",
            ("poetry",),
            "poetry.lock",
            _poetry_project_with_source,
            lambda job: [job.bin / "poetry", "lock", "--no-ansi"],
            again=lambda job: [job.bin / "poetry", "check", "--lock"],
            environ=_poetry_environ,
            pace=Pace.SLOW,
            note=f"{_TODAY}; universal; the same index as a source of simple pages",
        ),
        Peer(
            "pdm",
            ("pdm[locked]",),
            "pdm.lock",
            _pyproject,
            lambda job: [job.bin / "pdm", "lock", "--quiet"],
            again=lambda job: [job.bin / "pdm", "lock", "--quiet", "--check"],
            environ=_pdm_environ,
            pace=Pace.SLOW,
            note=f"{_TODAY} (its `--exclude-newer` finds nothing on an index that dates HTML pages only)",
        ),
    )
}
