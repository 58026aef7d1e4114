"""Git sources and sdists.

Git uses the user's logins and proxies; settings that change the files of a commit are overridden.
"""

from __future__ import annotations

import asyncio
import contextlib
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from envspec.context import Context
from envspec.credentials import filled, without_credentials
from envspec.errors import NetworkError, OfflineMiss, UnfitMachine, WrongHash
from envspec.fetch.types import archive_path
from envspec.io.archives import bounded_members, bounded_tar
from envspec.io.cache import as_cache_error
from envspec.io.files import replacing
from envspec.io.http import open_http
from envspec.io.http_settings import keeps_logins
from envspec.io.process import Finished, run
from envspec.io.store import Store
from envspec.models import DIRECT_URL, WheelFile
from envspec.names import COMMIT
from envspec.origins import origin_of
from envspec.resolve import cache
from envspec.resolve.pypi.index.routing import PackageIndexError
from envspec.spec import Requirement
from envspec.spec.requirements import GitAddress

_SETTINGS: Final = (
    *("core.autocrlf=false", "core.eol=lf", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.fileMode=true"),
    # A repository may name a folder of this machine as its submodule, or a program (`ext::`). Git refuses both by
    # default; only the user may name a folder.
    *("protocol.allow=user", "protocol.file.allow=user", "protocol.ext.allow=never"),
    *(f"protocol.{scheme}.allow=always" for scheme in ("http", "https", "ssh", "git")),
    *("advice.detachedHead=false", "init.defaultBranch=main", "core.attributesFile=/dev/null", "gc.auto=0"),
)
_DROPPED: Final = frozenset(
    [
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
        *("GIT_ALLOW_PROTOCOL", "GIT_PROTOCOL_FROM_USER"),
        # They write the headers of requests to files that others may read.
        *("GIT_CURL_VERBOSE", "GIT_TRACE_CURL", "GIT_TRACE_REDACT"),
    ]
)
#: Passes git the login in its environment variables. A shell's own `printf` is not a process.
_HELPER: Final = (
    """!f() { test "$1" = get && printf 'username=%s\\npassword=%s\\n' """
    """"$ENVSPEC_GIT_USER" "$ENVSPEC_GIT_PASSWORD"; }; f"""
)


async def commit_of(address: GitAddress, of: str, environ: Mapping[str, str]) -> str:
    """The commit that an address points to now. of: its package, for messages.

    Raises:
        GitError: the repository can't be read, or has no such branch or tag. UnfitMachine: there is no git.
    """
    if COMMIT.fits(address.ref):
        return address.ref
    refs = await _Git(address, of, environ).refs()
    ref = address.ref
    # A tag with a message is an object of its own: `^{}` names its commit.
    names, what = ["HEAD"], "no commit yet"
    if ref:
        names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref]
        what = f"no branch or tag {ref!r}"
    for name in names:
        if name in refs:
            return refs[name]
    if re.fullmatch(r"[0-9a-f]{4,39}", ref):
        what += " (write a commit with all of its digits)"
    raise GitError(
        f"{of}: {without_credentials(address.url)} has {what}",
        hint="name another one in the spec: it may have been renamed or deleted there",
    )


async def is_reachable(address: GitAddress, commit: str, of: str, environ: Mapping[str, str]) -> bool:
    """Whether a commit is in the history of an address's ref: see `_Git.contains`.

    Fetches only the history, and nothing if a branch or tag points to the commit.

    Raises:
        GitError: the repository can't be read.
    """
    if not COMMIT.fits(commit):
        # From a lock, as in `check_out`.
        return False
    git = _Git(address, of, environ)
    if address.ref == commit:
        refs = await git.refs()
        if commit in (refs[name] for name in refs if name.startswith(("refs/heads/", "refs/tags/"))):
            return True
    with tempfile.TemporaryDirectory(prefix="envspec-") as work:
        await git.clone(Path(work, "history"), "--filter=blob:none")
        return await git.contains(commit, Path(work, "history"))


async def check_out(address: GitAddress, commit: str, folder: Path, of: str, environ: Mapping[str, str]) -> Path:
    """Check out a commit, with its history, into the new `folder`; the project's folder in it.

    Raises:
        GitError: the repository can't be read, the commit is not in the history of the address's ref, or the
            subdirectory is not a folder of the repository.
    """
    if not COMMIT.fits(commit):
        # From a lock: git would parse a leading dash as an option.
        raise GitError(f"{of}: {commit!r} is not a commit", hint="run `envspec lock SPEC` to write the lock again")
    # Hard links would change times and modes of the source folder's files.
    git = _Git(address, of, environ)
    await git.clone(folder, "--no-hardlinks")
    if not await git.contains(commit, folder):
        raise unreachable(address, commit, of)
    await git.run(folder, "checkout", "--quiet", "--detach", commit)
    if (folder / ".gitmodules").exists():
        await git.run(folder, "submodule", "--quiet", "update", "--init", "--recursive")
    # The build must not see where the source came from.
    await git.attempt(folder, "remote", "remove", "origin")
    return _project(address, commit, folder, of)


class GitError(NetworkError, code="git"):
    """A repository can't be read, or does not have what the spec or the lock names."""


class _Git(Struct, frozen=True):
    """Runs git for one address. of: its package, for messages."""

    address: GitAddress
    of: str
    environ: Mapping[str, str]

    async def attempt(self, cwd: Path, *words: str) -> Finished:
        """Run git to its end, whatever its status."""
        environ = _logins_for(self.address, self.environ)
        program = shutil.which("git", path=environ.get("PATH"))
        if program is None:
            raise UnfitMachine(
                f"{self.of} is a git project, and git is not installed on this machine", hint="install git"
            )
        login, secrets = _login(self.address, environ)
        settings = []
        for setting in (*_SETTINGS, *login):
            settings += ["-c", setting]
        inherited = {name: value for name, value in environ.items() if name not in _DROPPED}
        variables = {**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", **secrets}
        return await run([program, *settings, *words], environ=variables, cwd=cwd)

    async def run(self, cwd: Path, *words: str) -> str:
        """The output of git.

        Raises:
            GitError: it failed.
        """
        done = await self.attempt(cwd, *words)
        if not done.status:
            return done.stdout
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        faults = [line for line in lines if line.startswith(("fatal:", "error:"))]
        reason = (faults or lines[-1:] or [""])[0]
        raise GitError(
            f"{self.of}: git can't read {without_credentials(self.address.url)}: {reason.removeprefix('fatal: ')}",
            hint="try `git ls-remote` with that address; check the address and your login",
        )

    async def refs(self) -> dict[str, str]:
        """Name -> commit, of all refs."""
        listed = await self.run(Path("/"), "ls-remote", "--", without_credentials(self.address.url))
        refs = {}
        for line in listed.splitlines():
            commit, _, name = line.partition("\t")
            refs[name] = commit
        return refs

    async def clone(self, folder: Path, how: str) -> None:
        url = without_credentials(self.address.url)
        await self.run(folder.parent, "clone", "--quiet", "--no-checkout", how, "--", url, str(folder))

    async def contains(self, commit: str, clone: Path) -> bool:
        """Whether a commit is in the history of the address's branch, tag or other ref such as `refs/pull/1/head`; of
        any branch or tag if the address names a commit.

        Some servers also serve commits of a repository's forks, so that serving one proves nothing.
        """
        ref = self.address.ref
        if COMMIT.fits(ref):
            within = ["refs/remotes/origin", "refs/tags"]
        elif ref:
            short = ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
            within = [f"refs/remotes/origin/{short}", f"refs/tags/{short}"]
        else:
            within = ["refs/remotes/origin/HEAD"]
        # A commit that is not in the clone is an error of git.
        found = await self.attempt(clone, "for-each-ref", "--count=1", f"--contains={commit}", "--", *within)
        if found.status == 0 and found.stdout.strip():
            return True
        if not ref.startswith("refs/") or (await self.attempt(clone, "fetch", "--quiet", "origin", ref)).status:
            return False
        return (await self.attempt(clone, "merge-base", "--is-ancestor", commit, "FETCH_HEAD")).status == 0


def unreachable(address: GitAddress, commit: str, of: str) -> GitError:
    """The error of a commit that is not in the history of an address's ref."""
    named = repr(address.ref) if address.ref else "the default branch"
    where = "on no branch or tag" if COMMIT.fits(address.ref) else f"not in the history of {named}"
    return GitError(
        f"{of}: commit {commit} is {where} of {without_credentials(address.url)}",
        hint="run `envspec lock --upgrade-package` if the branch was rewritten; name the fork if the commit is a "
        "fork's; name an unmerged commit by its ref: `@refs/pull/NUMBER/head`",
    )


def _project(address: GitAddress, commit: str, folder: Path, of: str) -> Path:
    """The project's folder, without links: a change of its files changes files of the clone only."""
    top = folder.resolve()
    where = without_credentials(address.url)
    project: Path | None = None
    # RuntimeError: a link to itself, before Python 3.13.
    with contextlib.suppress(OSError, RuntimeError):
        project = (top / address.subdirectory).resolve(strict=True) if address.is_inside else top.parent
    if project is not None and (not project.is_relative_to(top) or project.is_relative_to(top / ".git")):
        raise GitError(
            f"{of}: the subdirectory {address.subdirectory!r} of {where} is outside of the repository at {commit}",
            hint="name a folder of the repository by `#subdirectory=` in the spec",
        )
    if project is None or not project.is_dir():
        raise GitError(
            f"{of}: {where} has no folder {address.subdirectory} at {commit}",
            hint="correct `#subdirectory=` in the spec",
        )
    return project


def _logins_for(address: GitAddress, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment, with another home for plain http: git sends the logins in ~/.netrc over any scheme."""
    if keeps_logins(address.url) or not environ.get("HOME"):
        return environ
    configuration = Path(environ["HOME"], ".gitconfig")
    if configuration.is_file():
        environ = {"GIT_CONFIG_GLOBAL": str(configuration), **environ}
    return {**environ, "HOME": os.devnull}


def _login(address: GitAddress, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Settings and variables that pass git the login in an address, if it has one.

    Git runs its credential helpers for one server, when that requires a login, and again after a redirect; a header
    (`http.extraHeader`) would be sent to the target of any redirect. The helper reads variables: settings are
    arguments, which every user of the machine can read.
    """
    origin = origin_of(address.url)
    userinfo = urlsplit(address.url).netloc.rpartition("@")[0] if origin.startswith(("http://", "https://")) else ""
    if not userinfo:
        return [], {}
    user, colon, password = filled(userinfo, environ).partition(":")
    secrets = {"ENVSPEC_GIT_USER": unquote(user), "ENVSPEC_GIT_PASSWORD": unquote(password)}
    helper = f"credential.{origin}.helper="
    if colon:
        # Without the user's own helpers: they would run first, and those that store logins would store this one.
        return [helper, helper + _HELPER], secrets
    # A user alone: the user's own helpers may have the password. If none does it is a token.
    count = int(text) if (text := environ.get("GIT_CONFIG_COUNT", "")).isdigit() else 0
    secrets |= {
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": f"credential.{origin}.username",
        f"GIT_CONFIG_VALUE_{count}": unquote(user),
    }
    return [helper + _HELPER], secrets


_LARGEST_BYTES: Final = 4 << 30


async def fetch_sdist(
    requirement: Requirement, as_of: datetime, now: datetime, store: Store, context: Context
) -> tuple[WheelFile, Path]:
    """The locked file of the sdist at a requirement's URL, and its path in the cache.

    now: one that was fetched at or after `as_of` is not fetched again.

    Raises:
        NetworkError: it can't be fetched, it is no archive, or its hash is not the spec's. CacheError: the cache is
            full.
    """
    url = without_credentials(str(requirement.url))
    filename = unquote(urlsplit(url).path.rpartition("/")[2])
    key = cache.key_of(["sdist", url])
    cached = store.answer(key)

    def path_of(sha256: str) -> Path:
        return archive_path(context.cache, requirement.name, sha256, filename)

    is_cached = (
        cached is not None
        and requirement.sha256 in (None, cached["sha256"])
        and await asyncio.to_thread(path_of(cached["sha256"]).is_file)
    )
    if cached is None or not is_cached or datetime.fromisoformat(cached["requested_at"]) < as_of:
        if context.is_offline:
            raise OfflineMiss(url)
        with tempfile.TemporaryFile() as file:
            async with open_http(context.environ) as http:
                sha256 = await http.download(filled(str(requirement.url), context.environ), file, _LARGEST_BYTES)
            # Before it is cached: what came once in its place would stand there for every later run.
            if requirement.sha256 not in (None, sha256):
                raise WrongHash(
                    f"{url} has SHA-256 {sha256}, the spec requires {requirement.sha256}",
                    hint="correct the spec if the file is right; otherwise contact its publisher",
                )
            await asyncio.to_thread(_check_archive, file, url)
            await asyncio.to_thread(copy_to_cache, file, path_of(sha256))
            cached = {"requested_at": now.isoformat(), "sha256": sha256}
        store.put_answer(key, cached)
    path = path_of(cached["sha256"])
    size = (await asyncio.to_thread(path.stat)).st_size
    return WheelFile(DIRECT_URL, filename, cached["sha256"], size, url), path


def _check_archive(file: IO[bytes], url: str) -> None:
    """Raise PackageIndexError if a file is no whole archive."""
    if zipfile.is_zipfile(file):
        return
    file.seek(0)
    try:
        with bounded_tar(file) as tar:
            for _ in bounded_members(tar):
                pass
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise PackageIndexError(
            f"{url}: the server sends no sdist, or a damaged one: {' '.join(str(error).split())}",
            hint="open the URL with a browser, and correct it in the spec if it is wrong",
        ) from error


def copy_to_cache(file: IO[bytes], path: Path) -> None:
    """Write a whole file into the cache; it gets its name when it is complete. Raises CacheError: the cache is full."""
    file.seek(0)
    with as_cache_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as new, new.open("xb") as out:
            shutil.copyfileobj(file, out)
