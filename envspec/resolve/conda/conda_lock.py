"""conda-lock as the solver: the real `conda-lock lock`, with the conda, mamba or micromamba of this machine.

It sees one channel in a folder, with the records that the request allows, so that neither this machine's configuration
nor a record that was built too late can change the result. Its choices are looked up among the channels' own records.
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
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from msgspec import Struct

from envspec.io.process import Finished, run
from envspec.resolve.conda.channel_client import without_credentials
from envspec.resolve.conda.channels import Channels, in_time, write_repodata
from envspec.resolve.conda.records import by_name, record_name
from envspec.resolve.conda.solver import CondaUnsolvable, Rattler
from envspec.resolve.pypi.resolver import ResolverError
from envspec.resolve.types import CondaRequest
from envspec.structs import replace

if TYPE_CHECKING:
    from rattler import MatchSpec, RepoDataRecord

#: The programs that conda-lock can use, in order of preference.
EXECUTABLES: Final = ("conda", "mamba", "micromamba")
_HINT: Final = "use --resolver rattler"
#: conda's errors for unsatisfiable requirements; libmamba gives `solver_problems` instead.
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


class CondaLock(Struct, frozen=True):
    """Needs conda-lock and an executable for it on PATH. environ: has that PATH; None: the process's environment."""

    environ: Mapping[str, str] | None = None

    @property
    def version(self) -> str:
        """Its name alone if it is not installed."""
        with suppress(PackageNotFoundError):
            return f"conda-lock {version('conda-lock')}"
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
            raise ResolverError("no conda, mamba or micromamba on PATH", hint=_HINT)
        path = environ.get("PATH", "")
        records = allowed_records(request, await _reachable_records(request, channels))
        if kept := await _kept_files(request, channels, work):
            fewer: list[RepoDataRecord] = []
            for record in records:
                if kept.get(record_name(record), _file(record)) == _file(record):
                    fewer.append(record)
            with suppress(CondaUnsolvable):
                return await _choose(request, executable, path, fewer, work / "with-kept")
        return await _choose(request, executable, path, records, work / "free")


async def _choose(
    request: CondaRequest, executable: str, path: str, records: Sequence[RepoDataRecord], work: Path
) -> Sequence[RepoDataRecord]:
    """Run conda-lock for one platform. path: PATH for it and its executable. work: a folder to be made."""
    platform = request.platform.value
    channel = work / "channel"
    _write_channel(channel, (platform, "noarch"), records)
    virtual: dict[str, str] = {}
    for each in request.virtual_packages:
        virtual[each.name] = each.version
        if each.build != "0":
            virtual[each.name] += f" {each.build}"
    dependencies = _dependencies(request.requirements)
    # JSON is YAML as well.
    inputs = {
        "names.json": {},
        "virtual.yml": {"subdirs": {platform: {"packages": virtual}}},
        "environment.yml": {"channels": [channel.as_uri()], "dependencies": dependencies, "platforms": [platform]},
    }
    for name, value in inputs.items():
        (work / name).write_text(json.dumps(value), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "conda_lock", "lock", "--conda", executable, "--platform", platform),
        *("--file", "environment.yml", "--virtual-package-spec", "virtual.yml"),
        # Else it fetches a table of PyPI's names, which are not needed.
        *("--pypi_to_conda_lookup_file", "names.json"),
        *("--kind", "explicit", "--filename-template", "choice-{platform}.lock", "--log-level", "ERROR"),
    ]
    done = await run(command, environ=_environ(work, path), cwd=work)
    if done.status != 0:
        raise conda_lock_error(done, work, executable)
    return _look_up(work / f"choice-{platform}.lock", records)


def allowed_records(request: CondaRequest, records: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    """The records that a solver may choose from, as with rattler: of each name those of one channel alone.

    A name belongs to the first channel that has it, even if all its records there were built too late, unless a
    requirement names its channel.
    """
    specs_of = _specs_by_name((*request.requirements, *request.constraints))
    order = {channel.url: number for number, channel in enumerate(request.channels)}
    found: list[RepoDataRecord] = []
    for name, of_name in sorted(by_name(records).items()):
        specs = specs_of.get(name, ())
        urls = {without_credentials(str(spec.channel.base_url)) for spec in specs if spec.channel}
        if not urls:
            urls.add(min(map(_url_of, of_name), key=lambda url: order.get(url, len(order))))
        for record in in_time(of_name, request):
            if _url_of(record) in urls and all(spec.matches(record) for spec in specs):
                found.append(record)
    return found


def _specs_by_name(texts: Iterable[str]) -> dict[str, list[MatchSpec]]:
    from rattler import MatchSpec

    found: dict[str, list[MatchSpec]] = defaultdict(list)
    for spec in map(MatchSpec, texts):
        found[spec.name.normalized].append(spec)
    return found


def _url_of(record: RepoDataRecord) -> str:
    return without_credentials(record.channel or "")


async def _reachable_records(request: CondaRequest, channels: Channels) -> list[RepoDataRecord]:
    """Every record that the requirements can lead to, through all channels."""
    required = set(_specs_by_name(request.requirements))
    more: set[str] = set()
    while True:
        wider = replace(request, requirements=(*request.requirements, *sorted(more)))
        records = await channels.reachable(wider)
        names = set[str]()
        for record in records:
            names.add(record_name(record))
            for text in record.depends:
                if not text.startswith("__"):
                    names.add(text.split(maxsplit=1)[0])
        # One channel's records may require names of another channel, before or after it.
        if len(request.channels) == 1 or names - required <= more:
            return records
        more |= names - required


async def _kept_files(request: CondaRequest, channels: Channels, work: Path) -> Mapping[str, tuple[str, str]]:
    """The locked records that rattler keeps, by name.

    conda has no preferences, and conda-lock's own `--update` adds no package: a record is kept if nothing else of its
    name is shown.
    """
    chosen = set()
    if request.locked:
        with suppress(CondaUnsolvable):  # conda-lock will find the same and report it
            chosen = set(map(_file, await Rattler().solve(request, channels, work)))
    kept: dict[str, tuple[str, str]] = {}
    for package in request.locked:
        file = package.subdir, package.filename
        if file in chosen:
            kept[package.name] = file
    return kept


def _file(record: RepoDataRecord) -> tuple[str, str]:
    return record.subdir, record.file_name


def _dependencies(requirements: Iterable[str]) -> list[str]:
    """The requirements in conda-lock's form: one for each name, with version and build; see `allowed_records`."""
    found = []
    for name, specs in sorted(_specs_by_name(requirements).items()):
        versions: dict[str, None] = {}
        builds: list[str] = []
        for spec in specs:
            if spec.version:
                versions[spec.version] = None
            # Not every executable can read a regular expression.
            if spec.build and not spec.build.startswith("^"):
                builds.append(spec.build)
        version = ",".join(versions)
        if "|" in version:
            version = next(iter(versions))
        parts = [name]
        if versions or builds:
            parts.append(version or "*")
        found.append(" ".join([*parts, *builds[:1]]))
    return found


def _write_channel(folder: Path, subdirs: Iterable[str], records: Iterable[RepoDataRecord]) -> None:
    by_subdir: dict[str, dict[str, object]] = {subdir: {} for subdir in subdirs}
    for record in records:
        fields = json.loads(record.to_json())
        for key in ("fn", "url", "channel"):
            fields.pop(key, None)
        by_subdir[record.subdir][record.file_name] = fields
    for subdir, of_subdir in by_subdir.items():
        write_repodata(folder, subdir, of_subdir)


def _executable(environ: Mapping[str, str]) -> str | None:
    for name in EXECUTABLES:
        if path := shutil.which(name, path=environ.get("PATH", "")):
            return path
    return None


def _environ(work: Path, path: str) -> dict[str, str]:
    """The whole environment: none of the user's configuration, and everything is written below `work`.

    A conda that is a folder of its own still reads the `condarc` in that folder and below `/etc`, which cannot be
    turned off; in its standalone form (CONDA_RESTRICT_RC_SEARCH_PATH, from 24.9) and in mamba (MAMBA_NO_RC) it can.
    """
    scratch = work / "tmp"
    scratch.mkdir(exist_ok=True)
    folders = ("TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "CONDA_PKGS_DIRS", "CONDA_ENVS_PATH")
    return {
        **dict.fromkeys(folders, str(scratch)),
        **dict.fromkeys(("CONDARC", "MAMBARC"), os.devnull),
        **dict.fromkeys(("CONDA_OFFLINE", "CONDA_REPORT_ERRORS"), "false"),
        "PATH": path,
        "HOME": str(work),
        "LC_ALL": "C.UTF-8",
        "CONDA_RESTRICT_RC_SEARCH_PATH": "1",
        "MAMBA_NO_RC": "true",
        "MAMBA_ROOT_PREFIX": str(work / "mamba"),
    }


def _look_up(choice: Path, records: Iterable[RepoDataRecord]) -> list[RepoDataRecord]:
    by_file = {_file(record): record for record in records}
    lines = choice.read_text(encoding="utf-8").splitlines()
    found = []
    for line in filter(None, lines[lines.index("@EXPLICIT") + 1 :]):
        *_, subdir, filename = unquote(line.partition("#")[0]).split("/")
        if (subdir, filename) not in by_file:
            raise ResolverError(f"conda-lock chose {subdir}/{filename}, which was not among its records")
        found.append(by_file[subdir, filename])
    return found


def conda_lock_error(done: Finished, work: Path, executable: str) -> CondaUnsolvable | ResolverError:
    """The error with the executable's answer, without conda-lock's traceback and the folder's paths."""
    answer = _read_answer(done.stderr)
    name = Path(executable).name
    problems = answer.get("solver_problems")
    if isinstance(problems, list) and problems:
        return CondaUnsolvable(_clean("; ".join(map(str, problems)), work))
    message = _clean(str(answer.get("message") or answer.get("error") or ""), work)
    if answer.get("exception_name") in _UNSATISFIABLE:
        return CondaUnsolvable(message or f"{name} found no solution and gave no reason")
    last = _clean(["", *filter(str.strip, done.stderr.splitlines())][-1], work)
    return ResolverError(f"conda-lock with {name} exited with status {done.status}: {message or last}", hint=_HINT)


def _read_answer(stderr: str) -> Mapping[str, object]:
    """The JSON that the executable wrote; empty if it wrote none."""
    _, brace, after = stderr.partition("    STDOUT:\n")[2].partition("{")
    try:
        value, _ = json.JSONDecoder().raw_decode(brace + after)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _clean(message: str, work: Path) -> str:
    """conda's message, without its list of channels, which is ours, and without our folder."""
    text = re.split(r"\n[^\S\n]*(?:Current channels:|To search for alternate channels)", message)[0]
    text = re.sub(r"(?:file://)?" + re.escape(str(work)) + r"[^\s'\",;)]*", "...", text)
    text = text.replace(work.as_uri(), "...")
    return "\n".join(filter(None, map(str.rstrip, text.splitlines())))
