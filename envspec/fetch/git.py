"""Git repositories, by git itself: which commit a name stands for, and its files.

The user's logins and proxies are git's own matter; what would change the files of a commit is shut out.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envspec.credentials import without_credentials
from envspec.effects.process import Finished, run
from envspec.errors import NetworkError, UnfitMachine
from envspec.names import COMMIT
from envspec.spec.git_address import GitAddress

_SETTINGS: Final = (
    *("core.autocrlf=false", "core.eol=lf", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.fileMode=true"),
    # A repository may name a folder of this machine as its submodule, or a program (`ext::`). Git refuses both unless
    # its configuration says otherwise; only the user may name a folder.
    *("protocol.allow=user", "protocol.file.allow=user", "protocol.ext.allow=never"),
    *(f"protocol.{scheme}.allow=always" for scheme in ("http", "https", "ssh", "git")),
    *("advice.detachedHead=false", "init.defaultBranch=main", "core.attributesFile=/dev/null", "gc.auto=0"),
)
_DROPPED: Final = frozenset(
    [
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
        *("GIT_ALLOW_PROTOCOL", "GIT_PROTOCOL_FROM_USER"),
    ]
)


async def commit_of(address: GitAddress, of: str, environ: Mapping[str, str]) -> str:
    """The commit that an address means now. of: whose it is, for messages.

    Raises:
        NetworkError: the repository can't be read, or has no such branch or tag. UnfitMachine: there is no git.
    """
    if COMMIT.fits(address.ref):
        return address.ref
    done = await _git(["ls-remote", "--", address.url], of, environ, Path("/"))
    if done.status:
        raise _unreadable(address, of, done)
    rows = {name: commit for line in done.stdout.splitlines() for commit, _, name in [line.partition("\t")]}
    ref = address.ref
    # A tag with a message is an object of its own: `^{}` names its commit.
    names = [f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}", f"refs/heads/{ref}", ref] if ref else ["HEAD"]
    found = next((rows[name] for name in names if name in rows), None)
    if found is None:
        what = f"no branch or tag {ref!r}" if ref else "no commit yet"
        short = " (a commit is named by all of its digits)" if re.fullmatch(r"[0-9a-f]{4,39}", ref) else ""
        raise NetworkError(
            f"{of}: {without_credentials(address.url)} has {what}{short}",
            hint="was it renamed or deleted there? name another in the spec",
        )
    return found


async def is_in_history(address: GitAddress, commit: str, head: str, of: str, environ: Mapping[str, str]) -> bool:
    """Whether a commit is `head` or an ancestor of it. A server may give commits that are on no branch of a repository
    (those of its forks, on some), so that it has one says nothing.

    Raises:
        NetworkError: the repository can't be read.
    """
    if not COMMIT.fits(commit):
        # From a lock, as in `check_out`.
        return False
    with tempfile.TemporaryDirectory(prefix="envspec-") as work:
        folder = Path(work) / "history"
        words = ["clone", "--quiet", "--bare", "--filter=blob:none", "--", address.url, str(folder)]
        done = await _git(words, of, environ, folder.parent)
        if done.status:
            raise _unreadable(address, of, done)
        return (await _git(["merge-base", "--is-ancestor", commit, head], of, environ, folder)).status == 0


async def check_out(address: GitAddress, commit: str, folder: Path, of: str, environ: Mapping[str, str]) -> Path:
    """Put a commit's files, with its history, into `folder`, which is made; gives the project's folder in it.

    Raises:
        NetworkError: the repository can't be read, or lacks the commit or the subdirectory; or the subdirectory is not
            a folder of the repository.
    """
    if not COMMIT.fits(commit):
        # From a lock: git would take what begins with a dash for an option.
        raise NetworkError(f"{of}: {commit!r} is not a commit", hint="run `envspec lock SPEC` to write the lock again")
    # A folder whose files were linked would get the clone's times and modes.
    words = ["clone", "--quiet", "--no-checkout", "--no-hardlinks", "--", address.url, str(folder)]
    done = await _git(words, of, environ, folder.parent)
    if done.status:
        raise _unreadable(address, of, done)
    for words in (["cat-file", "-e", f"{commit}^{{commit}}"], ["fetch", "--quiet", "origin", commit]):
        there = await _git(words, of, environ, folder)
        if there.status == 0:
            break
    else:
        raise NetworkError(
            f"{of}: {without_credentials(address.url)} has no commit {commit} any more",
            hint="a branch was rewritten there: `envspec lock --upgrade-package` takes what it has now",
        )
    done = await _git(["checkout", "--quiet", "--detach", commit], of, environ, folder)
    if done.status:
        raise _unreadable(address, of, done)
    if (folder / ".gitmodules").exists():
        done = await _git(["submodule", "--quiet", "update", "--init", "--recursive"], of, environ, folder)
        if done.status:
            raise _unreadable(address, of, done)
    # Its address may hold a login, and what is built must not hold that.
    await _git(["remote", "remove", "origin"], of, environ, folder)
    return _project(address, commit, folder, of)


def _project(address: GitAddress, commit: str, folder: Path, of: str) -> Path:
    """The project's folder, without links: whoever changes its files changes files of the clone and no others."""
    top = folder.resolve()
    where = without_credentials(address.url)
    project: Path | None = None
    # RuntimeError: a link that leads to itself, before Python 3.13.
    with contextlib.suppress(OSError, RuntimeError):
        project = (top / address.subdirectory).resolve(strict=True) if address.is_inside else top.parent
    if project is not None and (not project.is_relative_to(top) or project.is_relative_to(top / ".git")):
        raise NetworkError(
            f"{of}: the subdirectory {address.subdirectory!r} of {where} leads out of the repository at {commit}",
            hint="name a folder of the repository by `#subdirectory=` in the spec",
        )
    if project is None or not project.is_dir():
        raise NetworkError(
            f"{of}: {where} has no folder {address.subdirectory} at {commit}",
            hint="correct `#subdirectory=` in the spec",
        )
    return project


async def _git(words: list[str], of: str, environ: Mapping[str, str], cwd: Path) -> Finished:
    program = shutil.which("git", path=environ.get("PATH"))
    if program is None:
        raise UnfitMachine(f"{of} is a git project, and there is no git on this machine", hint="install git")
    settings = [word for setting in _SETTINGS for word in ("-c", setting)]
    kept = {name: value for name, value in environ.items() if name not in _DROPPED}
    variables = {**kept, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}
    return await run([program, *settings, *words], environ=variables, cwd=cwd)


def _unreadable(address: GitAddress, of: str, done: Finished) -> NetworkError:
    lines = [without_credentials(line.strip()) for line in done.stderr.splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1] if lines else "")
    return NetworkError(
        f"{of}: git can't read {without_credentials(address.url)}: {told.removeprefix('fatal: ')}",
        hint="`git ls-remote` with that address says the same; is the address right, and a login at hand?",
    )
