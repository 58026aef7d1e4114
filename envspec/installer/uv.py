"""Wheels by uv."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path
from typing import Final

from envspec.context import Context
from envspec.credentials import shown
from envspec.errors import EnvspecError, OfflineMiss, UnfitMachine, WrongHash
from envspec.fetch.wheels import REFUSED, NotOnPage, login_hint
from envspec.installer.request import InstallRequest
from envspec.installer.staging import FOLDER, StagingFolder, unlink_metadata
from envspec.io import process
from envspec.io.files import DiskFull, remove_tree, system_faults
from envspec.io.http_settings import ca_bundle, default_index_url
from envspec.io.http_types import BadStatus, IncompleteResponse, RequestError, Retry, Stalled, Unreachable
from envspec.io.process import Finished, ParentLink, StopBy, run, run_streaming
from envspec.lockfile.export.requirements import requirements_text
from envspec.models import DEFAULT_INDEX, Resolution, WheelFile, owners_of, wrong_records_of
from envspec.names import normalised
from envspec.structs import replace
from envspec.verifier.hashing import ExpectedFile, hash_all
from envspec.verifier.installed import entries_of_owners, right_rows
from envspec.verifier.record import STRONG, RecordEntry
from envspec.verifier.scan import Distribution, PythonEnvironment, distributions, find_environment
from envspec.verifier.types import Drift

# Variables of the network and of the paths of programs and Pythons; none that affects what is installed.
_INHERITED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "SSL_CERT_DIR", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
_LOOPBACK: Final = "127.0.0.1,localhost,::1"
_TRANSIENT: Final = re.compile(
    r"decoding response body|Connection (?:reset|refused|closed)|connection closed|timed out|Failed to extract archive"
    r"|HTTP status server error|error sending request"
)


class UvError(EnvspecError, code="install-failed"):
    """uv failed with an error that envspec does not know."""


def environ(context: Context) -> dict[str, str]:
    """The environment of uv: none of the user's settings, and envspec's own timeouts."""
    inherited = {name: context.environ[name] for name in _INHERITED if context.environ.get(name)}
    # uv runs in another folder.
    if "NETRC" in inherited:
        inherited["NETRC"] = str(Path(inherited["NETRC"]).absolute())
    bundle = ca_bundle(context.environ)
    if bundle is not None and bundle.is_file():
        inherited["SSL_CERT_FILE"] = str(bundle.absolute())
    # No proxy for loopback, as for envspec's own requests.
    exempt = context.environ.get("no_proxy") or context.environ.get("NO_PROXY") or ""
    exempt = f"{exempt},{_LOOPBACK}".lstrip(",")
    variables = {
        **inherited,
        "NO_PROXY": exempt,
        "no_proxy": exempt,
        "LC_ALL": "C.UTF-8",
        "UV_CACHE_DIR": str(context.cache / "uv"),
        "UV_HTTP_TIMEOUT": str(max(1, round(context.timeouts.stall_s))),
        "UV_HTTP_RETRIES": str(context.timeouts.attempts - 1),
        "UV_CONCURRENT_DOWNLOADS": str(context.jobs),
        "UV_NO_CONFIG": "1",
        # As for envspec's own requests; uv has a list of its own.
        "UV_SYSTEM_CERTS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if context.is_offline:
        variables["UV_OFFLINE"] = "1"
    return variables


async def run_uv(arguments: Sequence[str], variables: Mapping[str, str], site: StagingFolder | None = None) -> Finished:
    """Run uv to its end. site: the folder that it writes to; it then ends when this process does."""
    from uv import find_uv_bin

    command = [find_uv_bin(), *arguments, "--color=never", "--no-progress"]
    if site is None:
        return await run(command, environ=variables, cwd=Path("/"))
    command = [sys.executable, "-I", "-S", process.__file__, *command]
    return await run_streaming(
        command, environ=variables, cwd=site.path, parent=ParentLink(site.descriptor, StopBy.STDIN)
    )


def is_transient(stderr: str) -> bool:
    """Whether a retry may help: uv retries requests without a response by itself, but not incomplete ones."""
    return bool(_TRANSIENT.search(stderr)) and not re.search(r"after \d+ retr", stderr)


def error_of(ended: Finished, variables: Mapping[str, str]) -> EnvspecError:
    """uv's error as envspec's own. variables: of its environment."""
    text = re.split(r"\n\s*(?:hint|help):", ended.stderr)[0]
    name = re.search(
        r"`([^`\s]+)==([^`\s]+)`|`([\w.-]+) @ |version of (\S+)==(\S+) and"
        r"|\b([\w.-]+) was not found in the (?:cache|package registry)",
        text,
    )
    who = " ".join(filter(None, name.groups())) if name else "the wheels"
    if mismatch := re.search(r"Expected:\s+((?:sha\w+:\w+\s+)+)Computed:\s+(\S+)", text):
        locked = ", ".join(mismatch[1].split()).replace("sha256:", "")
        return WrongHash(
            f"{who}: the index's file is not the locked one: "
            f"SHA-256 {mismatch[2].removeprefix('sha256:')}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is intended",
        )
    url = re.search(r"Failed to fetch: `?(\S+?)`?$", text, re.MULTILINE)
    if url and (status := re.search(r"HTTP status \w+ error \((\d{3})", text)):
        answered = BadStatus(url[1], int(status[1]))
        hint = login_hint(answered.url, variables) if answered.status in REFUSED else answered.hint
        answered.restate(f"{who}: {answered.message}", hint)
        return answered
    if old := re.search(_OLD_PYTHON, " ".join(text.split())):
        return UnfitMachine(
            f"{old['name']} {old['version']} needs Python {old['needed']}, and this is {old['python']}",
            hint="name a newer Python of the series (--python), or leave --python out: the locked one is fetched",
        )
    if re.search(_OFFLINE, text):
        return OfflineMiss(f"a file of {who}")
    where = f"{who}: {url[1]}" if url else who
    for pattern, kind, what, hint in _ERRORS:
        if re.search(pattern, text):
            at = "".join(f": {found.path}" for found in system_faults(text) if found.path)
            return kind(f"{where}: {what}{at}", hint=hint)
    for pattern, request_error, what, hint in _REQUEST_ERRORS:
        if re.search(pattern, text):
            return request_error(where, what, hint=hint)
    causes = ": ".join(_causes(text)) or f"it {_end_of(ended.status)}"
    return UvError(f"uv could not install {who}: {causes}", hint="run again with --debug and report it")


def _end_of(status: int) -> str:
    number = -status if status < 0 else status - 128
    if number in set(map(int, signal.Signals)):
        return f"was killed by {signal.Signals(number).name}"
    return f"exited with status {status}"


_AGAIN: Final = "run the same command again; fetched files are kept"
_OFFLINE: Final = r"connectivity is disabled|was not found in the cache"
#: (pattern in uv's stderr, error, what, hint); the first match counts.
_ERRORS: Final[tuple[tuple[str, type[EnvspecError], str, str], ...]] = (
    (
        r"os error (?:28|122|27)\b|No space left",
        DiskFull,
        "no space left while wheels were installed",
        f"free space and {_AGAIN}",
    ),
    (
        r"no wheels? with a matching|incompatible with|no compatible|can't be installed because",
        UnfitMachine,
        "the locked file is for another system or Python than this one",
        "run `envspec fit LOCK` for details",
    ),
    (
        r"there is no version of|was not found in the package registry",
        NotOnPage,
        "the index does not have it",
        "set ENVSPEC_DEFAULT_INDEX to an index that still has the file",
    ),
)
_REQUEST_ERRORS: Final[tuple[tuple[str, type[RequestError], str, str], ...]] = (
    (r"timed out", Stalled, "the server stalled", _AGAIN),
    (
        r"Connection refused|tcp connect error",
        Unreachable,
        "no connection",
        "check that the server runs, and HTTPS_PROXY",
    ),
    (r"dns error", Unreachable, "cannot resolve host", "check the spelling, DNS and HTTPS_PROXY"),
    (r"invalid peer certificate|certificate", RequestError, "no TLS connection", "name a CA bundle in SSL_CERT_FILE"),
    (r"decoding response body|[Cc]onnection (?:reset|closed)", IncompleteResponse, "the response ended early", _AGAIN),
    (r"Failed to extract archive", IncompleteResponse, "the received file is damaged", _AGAIN),
    (r"error sending request|Request failed", Unreachable, "the connection broke", _AGAIN),
)


_OLD_PYTHON: Final = (
    r"Python version \((?P<python>[\d.]+)\) does not satisfy Python(?P<needed>\S+) "
    r"and (?P<name>\S+)==(?P<version>\S+) depends on Python"
)


def _causes(text: str) -> list[str]:
    """uv's headline and causes, without progress, credentials and duplicate lines."""
    found = re.findall(r"^\s*(?:error|cause):\s*(.+(?:\n(?!\s*(?:error|cause):).+)*)", text, re.MULTILINE)
    words = (re.sub(r"\w+://[^\s`)]+", lambda url: shown(url[0]), " ".join(each.split())) for each in found)
    return list(dict.fromkeys(words))


async def install(request: InstallRequest, context: Context, site: StagingFolder, built: Iterable[Path]) -> None:
    """Install the wheels into the Python of the site. built: those of sources.

    Raises:
        NetworkError, DiskFull, UnfitMachine, UvError
    """
    requirements = _requirements_of(site)
    requirements.parent.mkdir(exist_ok=True)
    part = _with_built(request.resolution)
    requirements.write_text(requirements_text(request.lock.name, part), encoding="utf-8")
    arguments = [
        *("pip", "install", "--python", str(site.path / "bin" / "python")),
        *("--no-deps", "--require-hashes", "--no-build", "--requirements", str(requirements)),
        # A conda Python may be marked as externally managed.
        "--break-system-packages",
    ]
    for path in built:
        arguments += ["--find-links", str(path.parent)]
    variables = environ(context)
    # Not an argument: the URL may contain a password.
    variables["UV_DEFAULT_INDEX"] = default_index_url(context.environ)
    names = {each.name for each in request.resolution.packages}

    async def install_again(changed: Sequence[str], why: str) -> None:
        context.reporter.warning(f"{', '.join(changed)}: {why}: fetched again")
        if (ended := await run_uv(["cache", "clean", *changed], variables, site)).status != 0:
            raise error_of(ended, variables)
        again = list(arguments)
        for name in changed:
            again += ["--reinstall-package", name]
        await _run_with_retries(again, variables, context, site)

    try:
        await _run_with_retries(arguments, variables, context, site)
    except (UvError, UnfitMachine):
        if not (damaged := await asyncio.to_thread(damaged_in_cache, context.cache / "uv", names)):
            raise
        await install_again(damaged, "its metadata in the cache is not the wheel's")
    wrong_records = wrong_records_of(request.resolution)
    found = await asyncio.to_thread(changed_in_cache, site.path, wrong_records)
    if changed := [each for each in found if each in names]:
        await install_again(changed, "edited in another environment, which shares its files with the cache")
    await asyncio.to_thread(unlink_metadata, site.path, names)
    await _put_files_of_owners(request, arguments, variables, context, site)
    requirements.unlink()


def _requirements_of(site: StagingFolder) -> Path:
    return site.path / FOLDER / "requirements.txt"


async def _put_files_of_owners(
    request: InstallRequest,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    context: Context,
    site: StagingFolder,
) -> None:
    """Where several packages have different files, put those of the owners that the lock names.

    uv keeps whichever it installs last. arguments: by which uv has installed all of them.
    """
    environment = find_environment(site.path)
    entries = entries_of_owners(_wheels(environment), environment, owners_of(request.resolution.shared))
    expected = [ExpectedFile(path, {(entry.algorithm, entry.digest): None}) for path, (_, entry) in entries.items()]
    others = [each.path for each in hash_all(expected, str(environment.prefix)) if each.drift is not None]
    for owner in sorted({entries[path][0] for path in others}):
        # Beside the environment: into it, files of this package would replace those of their owners.
        folder = site.path / FOLDER / "owner"
        packages = [each for each in _with_built(request.resolution).packages if each.name == owner]
        part = replace(request.resolution, packages=tuple(packages))
        _requirements_of(site).write_text(requirements_text(request.lock.name, part), encoding="utf-8")
        await _run_with_retries([*arguments, "--target", str(folder)], variables, context, site)
        for path in others:
            if entries[path][0] == owner:
                inside = path.partition("/site-packages/")[2] or path
                (folder / inside).replace(environment.prefix / path)
        remove_tree(folder)


def _wheels(environment: PythonEnvironment) -> list[Distribution]:
    return list(chain.from_iterable(map(distributions, environment.sites)))


async def _run_with_retries(
    arguments: Sequence[str], variables: Mapping[str, str], context: Context, site: StagingFolder
) -> None:
    retry = Retry(context.timeouts, "uv")
    while (ended := await run_uv(arguments, variables, site)).status != 0:
        error = error_of(ended, variables)
        pause_s = retry.next_pause_s(error, transient=is_transient(ended.stderr))
        context.reporter.warning(f"{error.message}; trying again in {pause_s:.1f} s")
        await asyncio.sleep(pause_s)


def damaged_in_cache(cache: Path, names: Set[str]) -> list[str]:
    """Packages of `names` of which uv's cache has a `*.dist-info` that is not as its RECORD lists it.

    uv reads it without a check, and fails or installs for another version's requirements. Its RECORD is in no
    environment. cache: uv's folder.
    """
    damaged = set()
    for folder in cache.glob("archive-v*/*/*.dist-info"):
        name = normalised(folder.name.partition("-")[0])
        if name in names and not _is_intact(folder):
            damaged.add(name)
    return sorted(damaged)


def _is_intact(folder: Path) -> bool:
    """Whether the files of a `*.dist-info` are those in its RECORD."""
    expected: list[ExpectedFile] = []
    for found in distributions(folder.parent):
        for entry in found.entries or ():
            if entry.path.startswith(f"{folder.name}/") and entry.digest:
                expected.append(ExpectedFile(entry.path, {(entry.algorithm, entry.digest): None}))
    return bool(expected) and all(each.drift is None for each in hash_all(expected, os.path.realpath(folder.parent)))


def changed_in_cache(prefix: Path, wrong_records: Mapping[str, Mapping[str, str | None]]) -> list[str]:
    """Packages in an environment with a file that was changed after uv unpacked it into its cache.

    uv links files to its cache: one that is edited in an environment is the same in the cache, and in every environment
    that is installed later. Only files that are newer than their wheel's metadata are read. A file that several
    packages install may be that of any of them. wrong_records: see `Expected`.
    """
    environment = find_environment(prefix)
    wheels = _wheels(environment)
    newer = _newer_files(wheels, environment)
    if not newer:
        return []
    owners: dict[str, list[str]] = {}
    for found in wheels:
        rights = right_rows(found, environment, wrong_records)
        for expected, entry in _rows_of(found, newer):
            right = rights.get(expected.path)
            expected.hashes.update(right.hashes if right else {(entry.algorithm, entry.digest): None})
            owners.setdefault(expected.path, []).append(found.name)
    names: set[str] = set()
    for each in hash_all(newer.values(), str(environment.prefix)):
        if each.drift is Drift.CHANGED:
            names.update(owners[each.path])
    return sorted(names)


def _newer_files(wheels: Iterable[Distribution], environment: PythonEnvironment) -> dict[str, ExpectedFile]:
    """Absolute path -> a file that uv has linked and that is newer than its wheel's metadata, without its hashes."""
    newer: dict[str, ExpectedFile] = {}
    for found in wheels:
        try:
            unpacked_ns = min((found.site / found.folder / name).stat().st_mtime_ns for name in ("METADATA", "WHEEL"))
        except FileNotFoundError:
            continue
        root = os.path.join(found.site, "")  # noqa: PTH118 (40,000 times)
        for entry in found.entries or ():
            try:
                state = os.stat(root + entry.path)  # noqa: PTH116
            except FileNotFoundError:
                continue
            if entry.algorithm in STRONG and state.st_nlink > 1 and state.st_mtime_ns > unpacked_ns:
                path = environment.relative(root + entry.path)
                newer[root + entry.path] = ExpectedFile(path, {}, entry.size_bytes or 0)
    return newer


def _rows_of(found: Distribution, files: Mapping[str, ExpectedFile]) -> Iterator[tuple[ExpectedFile, RecordEntry]]:
    """The rows with a strong hash in a package's RECORD, of some files. files: by their absolute paths."""
    root = os.path.join(found.site, "")  # noqa: PTH118 (40,000 times)
    for entry in found.entries or ():
        if (expected := files.get(root + entry.path)) and entry.algorithm in STRONG:
            yield expected, entry


def _with_built(resolution: Resolution) -> Resolution:
    """The resolution with the wheels built from sources in the place of published ones."""
    packages = list(resolution.packages)
    for place, each in enumerate(packages):
        if each.built:
            file = WheelFile(DEFAULT_INDEX, each.built.filename, each.built.sha256, each.built.size_bytes)
            packages[place] = replace(each, file=file)
    return replace(resolution, packages=tuple(packages))
