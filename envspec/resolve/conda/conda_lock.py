"""conda-lock as the solver: the real `conda-lock lock`, through the conda, mamba or micromamba of this machine.

It sees one channel, ours, in a folder: the rows that the request allows, so that neither this machine's configuration
nor a row that was built too late can have a say. What it picks is looked up again among the channels' own rows.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from envspec.io.process import Finished, run
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.conda.channels import Channels, is_in_time
from envspec.resolve.conda.rattler import Rattler
from envspec.resolve.conda.solver import CondaUnsolvable
from envspec.resolve.pypi.resolver import EngineFault
from envspec.resolve.types import CondaRequest

if TYPE_CHECKING:
    from rattler import MatchSpec, RepoDataRecord

#: What conda-lock can drive, in the order in which they are looked for.
EXECUTABLES: Final = ("conda", "mamba", "micromamba")
_OTHERWISE: Final = "use --resolver rattler"
#: conda's names for "this can't be satisfied"; libmamba gives `solver_problems` instead of a name.
_UNSATISFIABLE: Final = frozenset(
    {
        "LibMambaUnsatisfiableError",
        "PackagesNotFoundError",
        "ResolvePackageNotFound",
        "RattlerUnsatisfiableError",
        "SpecsConfigurationConflictError",
        "UnsatisfiableError",
    }
)


@dataclass(frozen=True, slots=True)
class CondaLock:
    """Works where conda-lock is installed and an executable for it is on PATH.

    environ: the PATH in it is searched, and handed on; the process's own where None.
    """

    environ: Mapping[str, str] | None = None

    @property
    def version(self) -> str:
        """Its name alone where it is not installed."""
        try:
            return f"conda-lock {version('conda-lock')}"
        except PackageNotFoundError:
            return "conda-lock"

    def unable(self, environ: Mapping[str, str]) -> str | None:
        if find_spec("conda_lock") is None:
            return "not installed; get it with `pip install 'envspec[conda-lock]'`"
        if _executable(environ) is None:
            return "no conda, mamba or micromamba on PATH"
        return None

    async def solve(self, request: CondaRequest, channels: Channels, work: Path) -> Sequence[RepoDataRecord]:
        environ = os.environ if self.environ is None else self.environ
        executable = _executable(environ)
        if executable is None:
            raise EngineFault("no conda, mamba or micromamba on PATH", hint=_OTHERWISE)
        lock = _Lock(request, executable, environ.get("PATH", ""))
        rows = allowed(request, await _reachable(request, channels))
        if staying := await _staying(request, channels, work / "staying"):
            kept = [row for row in rows if staying.get(row.name.normalized, _file(row)) == _file(row)]
            with suppress(CondaUnsolvable):
                return await lock.picks(kept, work / "kept")
        return await lock.picks(rows, work / "free")


@dataclass(frozen=True, slots=True)
class _Lock:
    """One run of conda-lock for one platform. path: the PATH that it and its executable get."""

    request: CondaRequest
    executable: str
    path: str

    async def picks(self, rows: Sequence[RepoDataRecord], work: Path) -> Sequence[RepoDataRecord]:
        """What conda-lock picks of these rows. work: a folder to be made."""
        platform = self.request.platform.value
        channel = work / "channel"
        _write_channel(channel, (platform, "noarch"), rows)
        _write(work / "names.json", {})
        _write(work / "virtual.yml", {"subdirs": {platform: {"packages": _virtual_packages(self.request)}}})
        _write(
            work / "environment.yml",
            {
                "channels": [channel.as_uri()],
                "dependencies": _asked(self.request.requirements),
                "platforms": [platform],
            },
        )
        command = [
            *(sys.executable, "-m", "conda_lock", "lock", "--conda", self.executable, "--platform", platform),
            *("--file", "environment.yml", "--virtual-package-spec", "virtual.yml"),
            # Else it fetches a table of PyPI's names, of which there are none here.
            *("--pypi_to_conda_lookup_file", "names.json"),
            *("--kind", "explicit", "--filename-template", "picks-{platform}.lock", "--log-level", "ERROR"),
        ]
        done = await run(command, environ=_environ(work, self.path), cwd=work)
        if done.status != 0:
            raise failure(done, work, self.executable)
        return _looked_up(work / f"picks-{platform}.lock", rows)


def allowed(request: CondaRequest, rows: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """The rows that a solver may choose from, as the rattler engine does: of each name those of one channel alone.

    A name belongs to the first channel that has it, also where all its rows there were built too late, unless a
    requirement names its channel.
    """
    from rattler import MatchSpec

    rules = _by_name(MatchSpec(text) for text in (*request.requirements, *request.constraints))
    order = {channel.url: place for place, channel in enumerate(request.channels)}
    by_name: dict[str, list[RepoDataRecord]] = defaultdict(list)
    for row in rows:
        by_name[row.name.normalized].append(row)
    found: list[RepoDataRecord] = []
    for name, held in sorted(by_name.items()):
        specs = rules.get(name, ())
        named = {_url(str(spec.channel.base_url)) for spec in specs if spec.channel}
        first = min((_url(row.channel) for row in held), key=lambda url: order.get(url, len(order)))
        found += [
            row
            for row in held
            if _url(row.channel) in (named or {first})
            and all(spec.matches(row) for spec in specs)
            and is_in_time(row, request.cut_of(name), undated=request.undated)
        ]
    return found


def _by_name(specs: Iterable[MatchSpec]) -> dict[str, list[MatchSpec]]:
    found: dict[str, list[MatchSpec]] = defaultdict(list)
    for spec in specs:
        found[spec.name.normalized].append(spec)
    return found


def _url(address: str | None) -> str:
    return without_credentials(address or "")


async def _reachable(request: CondaRequest, channels: Channels) -> list[RepoDataRecord]:
    """Every row that the requirements can lead to, through all channels."""
    from rattler import MatchSpec

    asked = {MatchSpec(text).name.normalized for text in request.requirements}
    more: set[str] = set()
    while True:
        wider = replace(request, requirements=(*request.requirements, *sorted(more)))
        rows = await channels.reachable(wider)
        known = {row.name.normalized for row in rows}
        known |= {text.split(maxsplit=1)[0] for row in rows for text in row.depends if not text.startswith("__")}
        # What one channel's rows lead to may lie in another, before it or behind it.
        if len(request.channels) == 1 or known - asked <= more:
            return rows
        more |= known - asked


async def _staying(request: CondaRequest, channels: Channels, work: Path) -> Mapping[str, tuple[str, str]]:
    """The locked rows that can stay, by name: the first engine says which.

    conda knows no rows that it should prefer, and conda-lock's own `--update` adds no package: what stays is kept by
    showing nothing else of its name.
    """
    if not request.locked:
        return {}
    try:
        chosen = {_file(row) for row in await Rattler().solve(request, channels, _made(work))}
    except CondaUnsolvable:
        return {}  # conda-lock will find the same, and say it in its words
    files = {package.name: (package.subdir, package.filename) for package in request.locked}
    return {name: file for name, file in files.items() if file in chosen}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file(row: RepoDataRecord) -> tuple[str, str]:
    return row.subdir, row.file_name


def _asked(requirements: Iterable[str]) -> list[str]:
    """The requirements as conda-lock can carry them: one a name, with versions and build; the rows obey them whole."""
    from rattler import MatchSpec

    found = []
    for name, specs in sorted(_by_name(MatchSpec(text) for text in requirements).items()):
        versions = list(dict.fromkeys(spec.version for spec in specs if spec.version))
        # A regular expression is not every executable's to read.
        builds = [spec.build for spec in specs if spec.build and not spec.build.startswith("^")]
        told = ",".join(versions) if not any("|" in text for text in versions) else versions[0]
        found.append(" ".join([name, *([told or "*"] if versions or builds else []), *builds[:1]]))
    return found


def _virtual_packages(request: CondaRequest) -> dict[str, str]:
    return {
        package.name: package.version if package.build == "0" else f"{package.version} {package.build}"
        for package in request.virtual_packages
    }


def _write_channel(folder: Path, subdirs: Iterable[str], rows: Iterable[RepoDataRecord]) -> None:
    documents: dict[str, dict[str, dict[str, object]]] = {
        subdir: {"info": {"subdir": subdir}, "packages": {}, "packages.conda": {}} for subdir in subdirs
    }
    for row in rows:
        text = json.loads(row.to_json())
        told = {key: value for key, value in text.items() if key not in ("fn", "url", "channel")}
        kind = "packages.conda" if row.file_name.endswith(".conda") else "packages"
        documents[row.subdir][kind][row.file_name] = told
    for subdir, document in documents.items():
        _write(folder / subdir / "repodata.json", document)


def _write(path: Path, value: object) -> None:
    """JSON, which is YAML as well."""
    _made(path.parent).joinpath(path.name).write_text(json.dumps(value), encoding="utf-8")


def _executable(environ: Mapping[str, str]) -> str | None:
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in EXECUTABLES)
    return next((path for path in found if path), None)


def _environ(work: Path, path: str) -> dict[str, str]:
    """A whole environment: no configuration of the user's comes through, and what is written lies in `work`.

    A conda that is a folder of its own still reads the `condarc` in that folder and below `/etc`: it offers no way
    around them, its standalone form (CONDA_RESTRICT_RC_SEARCH_PATH, from 24.9) and mamba (MAMBA_NO_RC) do.
    """
    scratch = str(_made(work / "tmp"))
    return {
        "PATH": path,
        "HOME": str(work),
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "XDG_CONFIG_HOME": scratch,
        "LC_ALL": "C.UTF-8",
        "CONDARC": os.devnull,
        "CONDA_RESTRICT_RC_SEARCH_PATH": "1",
        "CONDA_PKGS_DIRS": scratch,
        "CONDA_ENVS_PATH": scratch,
        "CONDA_OFFLINE": "false",
        "CONDA_REPORT_ERRORS": "false",
        "MAMBARC": os.devnull,
        "MAMBA_NO_RC": "true",
        "MAMBA_ROOT_PREFIX": str(work / "mamba"),
    }


def _looked_up(picks: Path, rows: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    known = {_file(row): row for row in rows}
    lines = picks.read_text(encoding="utf-8").splitlines()
    found = []
    for url in (line.partition("#")[0] for line in lines[lines.index("@EXPLICIT") + 1 :] if line):
        *_, subdir, filename = unquote(url).split("/")
        if (subdir, filename) not in known:
            raise EngineFault(f"conda-lock picked {subdir}/{filename}, which is not among the rows that it was given")
        found.append(known[subdir, filename])
    return found


def failure(done: Finished, work: Path, executable: str) -> CondaUnsolvable | EngineFault:
    """conda-lock prints its executable's answer and a traceback: the answer is told, without the folder's paths."""
    answer = _answer(done.stderr)
    name = Path(executable).name
    problems = answer.get("solver_problems")
    if isinstance(problems, list) and problems:
        return CondaUnsolvable(_told("; ".join(map(str, problems)), work))
    told = _told(str(answer.get("message") or answer.get("error") or ""), work)
    if answer.get("exception_name") in _UNSATISFIABLE:
        return CondaUnsolvable(told or f"{name} found no solution and did not say why")
    last = _told(next((line for line in reversed(done.stderr.splitlines()) if line.strip()), ""), work)
    return EngineFault(f"conda-lock with {name} ended with status {done.status}: {told or last}", hint=_OTHERWISE)


def _answer(stderr: str) -> Mapping[str, object]:
    """The JSON that the executable wrote; empty where it wrote none."""
    _, found, after = stderr.partition("    STDOUT:\n")
    start = after.find("{")
    if not found or start < 0:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(after[start:])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _told(message: str, work: Path) -> str:
    """conda's words, less its list of channels, of which there is one, and less our folder."""
    text = re.split(r"\n[^\S\n]*(?:Current channels:|To search for alternate channels)", message)[0]
    text = re.sub(r"(?:file://)?" + re.escape(str(work)) + r"[^\s'\",;)]*", "...", text)
    text = text.replace(work.as_uri(), "...")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
