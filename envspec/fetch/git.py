"""Git repositories, by git itself: which commit a name stands for, and its files.

The user's logins and proxies are git's own matter; what would change the files of a commit is shut out.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from envspec.effects.process import Finished, run
from envspec.errors import NetworkError, UnfitMachine
from envspec.spec.git_address import GitAddress
from envspec.spec_hash import without_credentials

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SETTINGS: Final = (
    *("core.autocrlf=false", "core.eol=lf", "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.fileMode=true"),
    *("advice.detachedHead=false", "init.defaultBranch=main", "core.attributesFile=/dev/null", "gc.auto=0"),
)
_DROPPED: Final = frozenset({"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"})


async def commit_of(address: GitAddress, of: str, environ: Mapping[str, str]) -> str:
    """The commit that an address means now. of: whose it is, for messages.

    Raises:
        NetworkError: the repository can't be read, or has no such branch or tag. UnfitMachine: there is no git.
    """
    if _COMMIT.fullmatch(address.ref):
        return address.ref
    done = await _git(["ls-remote", address.url], of, environ, Path("/"))
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
    with tempfile.TemporaryDirectory(prefix="envspec-") as work:
        folder = Path(work) / "history"
        words = ["clone", "--quiet", "--bare", "--filter=blob:none", address.url, str(folder)]
        done = await _git(words, of, environ, folder.parent)
        if done.status:
            raise _unreadable(address, of, done)
        return (await _git(["merge-base", "--is-ancestor", commit, head], of, environ, folder)).status == 0


async def check_out(address: GitAddress, commit: str, folder: Path, of: str, environ: Mapping[str, str]) -> Path:
    """Put a commit's files, with its history, into `folder`, which is made; gives the project's folder in it.

    Raises:
        NetworkError: the repository can't be read, or lacks the commit or the subdirectory.
    """
    done = await _git(["clone", "--quiet", "--no-checkout", address.url, str(folder)], of, environ, folder.parent)
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
    project = folder / address.subdirectory
    if not project.is_dir():
        raise NetworkError(
            f"{of}: {without_credentials(address.url)} has no folder {address.subdirectory} at {commit}",
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
