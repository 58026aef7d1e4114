"""Wheels by uv."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from envspec.context import Context, Step
from envspec.credentials import shown
from envspec.errors import EnvspecError, NetworkError, UnfitMachine
from envspec.installer.staging import FOLDER, DiskFull, StagingFolder
from envspec.installer.types import BuildSources, InstallRequest, InstallStage
from envspec.io import process
from envspec.io.http_settings import ca_bundle, default_index_url
from envspec.io.http_types import BadStatus
from envspec.io.process import Finished, ParentLink, StopBy, run, run_streaming
from envspec.lockfile.export.requirements import requirements_text
from envspec.models import DEFAULT_INDEX, Resolution, WheelFile

# How the machine reaches the world, and where programs and Pythons are; nothing that says what is installed.
_KEPT: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "NETRC", "SSL_CERT_DIR", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)
_LOOPBACK: Final = "127.0.0.1,localhost,::1"
_PASSING: Final = re.compile(
    r"decoding response body|Connection (?:reset|refused|closed)|connection closed|timed out|Failed to extract archive"
    r"|HTTP status server error|error sending request"
)


class UvError(EnvspecError):
    """uv failed in a way that has no words here."""


def environ(context: Context) -> dict[str, str]:
    """A whole environment for uv: none of the user's settings, and envspec's own timeouts."""
    kept = {name: context.environ[name] for name in _KEPT if context.environ.get(name)}
    bundle = ca_bundle(context.environ)
    # What is on this machine is never asked for through a proxy: envspec's own requests are not, either.
    exempt = context.environ.get("no_proxy") or context.environ.get("NO_PROXY") or ""
    exempt = f"{exempt},{_LOOPBACK}".lstrip(",")
    return {
        **kept,
        **({"SSL_CERT_FILE": str(bundle)} if bundle is not None and bundle.is_file() else {}),
        "NO_PROXY": exempt,
        "no_proxy": exempt,
        "LC_ALL": "C.UTF-8",
        "UV_CACHE_DIR": str(context.cache / "uv"),
        "UV_HTTP_TIMEOUT": str(max(1, round(context.timeouts.stall_s))),
        "UV_HTTP_RETRIES": str(context.timeouts.attempts - 1),
        "UV_CONCURRENT_DOWNLOADS": str(context.jobs),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        **({"UV_OFFLINE": "1"} if context.is_offline else {}),
    }


async def run_uv(words: Sequence[str], variables: Mapping[str, str], site: StagingFolder | None = None) -> Finished:
    """Run uv to its end, whatever its status. site: where it writes; then it ends when this process does."""
    from uv import find_uv_bin

    command = [find_uv_bin(), *words, "--color=never", "--no-progress"]
    if site is None:
        return await run(command, environ=variables, cwd=Path("/"))
    command = [sys.executable, "-I", "-S", process.__file__, *command]
    return await run_streaming(
        command, environ=variables, cwd=site.path, parent=ParentLink(site.descriptor, StopBy.STDIN)
    )


def is_transient(stderr: str) -> bool:
    """Whether asking again may help; uv itself has, where no answer came, but not where one broke off."""
    return bool(_PASSING.search(stderr)) and not re.search(r"after \d+ retr", stderr)


def error_of(ended: Finished) -> EnvspecError:
    """What uv says, in words for the user and with an exit code of ours."""
    text = re.split(r"\n\s*(?:hint|help):", ended.stderr)[0]
    name = re.search(r"`([^`\s]+)==([^`\s]+)`|version of (\S+)==(\S+) and|\b([\w.-]+) was not found in the cache", text)
    who = " ".join(part for part in name.groups() if part) if name else "the wheels"
    if mismatch := re.search(r"Expected:\s+((?:sha\w+:\w+\s+)+)Computed:\s+(\S+)", text):
        locked = ", ".join(mismatch[1].split()).replace("sha256:", "")
        return NetworkError(
            f"{who}: the index's file is not the one that the lock names: "
            f"SHA-256 {mismatch[2].removeprefix('sha256:')}, locked {locked}",
            hint="nothing was installed; find out who changed the file, and lock again only if the change is meant",
        )
    url = re.search(r"Failed to fetch: `?(\S+?)`?$", text, re.MULTILINE)
    if url and (status := re.search(r"HTTP status \w+ error \((\d{3})", text)):
        answered = BadStatus(url[1], int(status[1]))
        return NetworkError(f"{who}: {answered.message}", hint=answered.hint)
    where = f"{shown(url[1])}: " if url else ""
    for pattern, kind, what, hint in _ROWS:
        if re.search(pattern, text):
            return kind(f"{who}: {where}{what}", hint=hint)
    told = ": ".join(_causes(text)) or f"it ended with status {ended.status}"
    return UvError(f"uv could not install {who}: {told}", hint="run again with --debug and report it")


_AGAIN: Final = "run the same command again; what was fetched is kept"
#: What uv says -> what it is, and what to do about it. The first row that fits decides.
_ROWS: Final[tuple[tuple[str, type[EnvspecError], str, str], ...]] = (
    (
        r"os error (?:28|122|27)\b|No space left",
        DiskFull,
        "no space left while wheels were installed",
        "make room and run the same command again; what was fetched is kept",
    ),
    (
        r"connectivity is disabled|was not found in the cache",
        NetworkError,
        "a file is not in the cache, and --offline forbids fetching it",
        "run once without --offline",
    ),
    (
        r"no wheels? with a matching|incompatible with|no compatible|can't be installed because",
        UnfitMachine,
        "the locked file is for another system or Python than this one",
        "`envspec fit LOCK` tells more",
    ),
    (
        r"there is no version of|was not found in the package registry",
        NetworkError,
        "the index does not have that version",
        "does it still have the file? ENVSPEC_DEFAULT_INDEX names another index",
    ),
    (r"timed out", NetworkError, "the server stalled", _AGAIN),
    (
        r"Connection refused|tcp connect error",
        NetworkError,
        "no connection",
        "is the server up, and HTTPS_PROXY right?",
    ),
    (r"dns error", NetworkError, "the host's name is not known here", "check the spelling, DNS and HTTPS_PROXY"),
    (r"invalid peer certificate|certificate", NetworkError, "no TLS connection", "name a bundle in SSL_CERT_FILE"),
    (r"decoding response body|[Cc]onnection (?:reset|closed)", NetworkError, "the answer broke off", _AGAIN),
    (r"Failed to extract archive", NetworkError, "the file that came is damaged", _AGAIN),
    (r"error sending request|Request failed", NetworkError, "the connection broke", _AGAIN),
)


def _causes(text: str) -> list[str]:
    """uv's headline and its causes, without what it says on the way and without credentials or doubled lines."""
    found = re.findall(r"^\s*(?:error|cause):\s*(.+(?:\n(?!\s*(?:error|cause):).+)*)", text, re.MULTILINE)
    words = (re.sub(r"\w+://[^\s`)]+", lambda url: shown(url[0]), " ".join(each.split())) for each in found)
    return list(dict.fromkeys(words))


async def install(order: InstallRequest, context: Context, site: StagingFolder, build_sources: BuildSources) -> None:
    """Install the wheels into the Python of the site; uv's cache keeps what was fetched.

    Raises:
        NetworkError, DiskFull, UnfitMachine, UvError: in words for the user.
    """
    packages = order.resolution.packages
    if not packages:
        return
    total = sum(package.file.size_bytes or 0 for package in packages)
    context.reporter.progress(Step(InstallStage.WHEELS, 0, len(packages), 0, total))
    python = site.path / "bin" / "python"
    resolution = order.resolution
    built: Mapping[str, Path] = {}
    if any(package.built or not package.file.filename.endswith(".whl") for package in packages):
        # Not by uv while it installs: there, what a build requires would come from wherever uv finds it.
        resolution, built = await build_sources(order, python)
    lock = replace(order.lock, resolutions=(with_built(resolution),))
    requirements = _write(site.path / FOLDER / "requirements.txt", requirements_text(lock, order.platform))
    words = [
        *("pip", "install", "--python", str(python)),
        *("--no-deps", "--require-hashes", "--no-build", "--requirements", str(requirements)),
        # A conda Python may be marked as managed by something else, which here it is.
        "--break-system-packages",
    ]
    for path in built.values():
        words += ["--find-links", str(path.parent)]
    variables = environ(context)
    # In the environment and not among the words: the address may hold a password.
    variables["UV_DEFAULT_INDEX"] = default_index_url(context.environ)
    for attempt in count(1):
        ended = await run_uv(words, variables, site)
        if ended.status == 0:
            break
        if attempt >= context.timeouts.attempts or not is_transient(ended.stderr):
            raise error_of(ended)
        fault, pause = error_of(ended), context.timeouts.backoff_s * 2 ** (attempt - 1)
        context.reporter.warning(f"{fault.message}; trying again in {pause:.1f} s")
        await asyncio.sleep(pause)
    requirements.unlink()


def with_built(resolution: Resolution) -> Resolution:
    """The same packages, as if the wheels that were built of sources had been published as `name==version`."""
    packages = tuple(
        replace(each, file=WheelFile(DEFAULT_INDEX, each.built.filename, each.built.sha256, each.built.size_bytes))
        if each.built
        else each
        for each in resolution.packages
    )
    return replace(resolution, packages=packages)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
