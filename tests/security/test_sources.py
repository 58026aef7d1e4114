"""Sources that lead out of the folder that envspec made for them: git's, local projects', sdists'.

What is outside keeps its modes, times and contents, and stays.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.build.reproducible import fix_times_and_modes, unpack
from envspec.build.types import WheelBuildFailed
from envspec.build.wheel import folder_source
from envspec.errors import EnvspecError
from envspec.fetch.sources import check_out, commit_of
from envspec.io.files import tree_sha256
from envspec.spec.errors import BadValue
from envspec.spec.requirements import GitAddress, read_git, read_requirement
from tests.operations.test_build_projects import AS_OF, PROJECT, Repository
from tests.operations.test_build_projects import write as write_files
from tests.security.hostile import Member, hardlink, symlink, tar_of
from tests.support.builders import ecosystem
from tests.support.builders.environments import RUNNING
from tests.support.builders.images import ImageUser
from tests.support.servers.index import IndexServer
from tests.support.user import refused, succeeded

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")

MOMENT: Final = datetime(2020, 1, 1, tzinfo=timezone.utc)
#: A platform's wheel: a build here that gives one is laid out again, for a container.
COMPILED: Final = {
    **PROJECT,
    "backend.py": PROJECT["backend.py"]
    .replace(b"py3-none-any", b"cp311-cp311-linux_x86_64")
    .replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false"),
}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder of the user's that looks like a project; nothing of it may change."""
    folder = write_files(tmp_path / "outside", COMPILED)
    (folder / "own.py").chmod(0o600)
    (folder / "private").mkdir(mode=0o700)
    before = state(folder)
    yield folder
    assert state(folder) == before


def state(folder: Path) -> dict[str, tuple[int, int, bytes | str]]:
    found: dict[str, tuple[int, int, bytes | str]] = {}
    for path in sorted((folder, *folder.rglob("*"))):
        known = path.lstat()
        content: bytes | str = path.read_bytes() if path.is_file() and not path.is_symlink() else ""
        found[str(path)] = (known.st_mode, known.st_mtime_ns, content)
    return found


@pytest.fixture
def user(tmp_path: Path) -> Iterator[ImageUser]:
    with IndexServer([ecosystem.release("lib", "1.0.0")]) as index:
        yield ImageUser(tmp_path / "user", index.url)


def locks(user: ImageUser, requirement: str) -> Any:
    user.wants(requirement, as_of=AS_OF, python=RUNNING)
    return user.locks()


@pytest.mark.parametrize(
    "inner",
    [
        *("../../home", "..", "a/../../b", "a/..", "/etc", "//etc", "%2e%2e/home", "%2E%2E%2Fhome", "..%2F..%2Fhome"),
        *("a\\..\\..\\b", "..\\home", ".git", ".git/hooks", "a/.git", ".GIT/x", "a%00b", "a%0Ab", "a%1B"),
    ],
)
def test_a_spec_names_no_folder_outside_of_a_repository(inner: str) -> None:
    with pytest.raises(BadValue, match="is not a folder of the repository"):
        read_requirement(f"own @ git+https://example.org/repo.git@main#subdirectory={inner}")


@pytest.mark.parametrize("inner", ["py/own", "a.b/..c", "py/own/", "%70y/own", "a b/ä", "a%2520b", ".github", "x.git"])
def test_a_folder_of_a_repository_comes_back_from_the_lock(inner: str) -> None:
    address = f"git+https://example.org/repo.git@main#subdirectory={inner}"
    assert read_requirement(f"own @ {address.replace(' ', '%20')}").url
    read = read_git(address)
    assert read_git(read.pinned("ab" * 20)).subdirectory == read.subdirectory != ""


@needs_git
def test_a_lock_is_refused_before_anything_is_cloned(user: ImageUser, outside: Path, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo.git")
    for inner in (f"../../../{outside}", str(outside), "%2e%2e/%2e%2e"):
        text = refused(locks(user, f"own @ {repository.url}#subdirectory={inner}"), 2)
        assert "is not a folder of the repository" in text


@needs_git
@pytest.mark.parametrize("url", ["git+https://[::1/repo.git", "git+--upload-pack=x://repo.git", "git+ext::sh -c x://y"])
def test_an_address_that_git_does_not_take(user: ImageUser, tmp_path: Path, url: str) -> None:
    refused(locks(user, f"own @ {url.replace(' ', '%20')}"), 5)
    assert not list(tmp_path.rglob("pwned"))


@needs_git
@pytest.mark.parametrize("target", ["{outside}", "../../../../../../../..{outside}", "hop", "loop", ".git", "sub"])
def test_a_link_in_a_repository(user: ImageUser, outside: Path, tmp_path: Path, target: str) -> None:
    """`part` is a link to the target; `hop` leads out by a second link, `loop` to itself."""
    repository = Repository(tmp_path / "repo.git", {"sub/readme": b"x"})
    for name, to in (("hop", "sub/out"), ("sub/out", str(outside)), ("loop", "part")):
        (repository.folder / name).symlink_to(to)
    (repository.folder / "part").symlink_to(target.format(outside=outside))
    repository.commit({"sub/x": b"x"})
    text = refused(locks(user, f"own @ {repository.url}#subdirectory=part"), 5 if target != "sub" else 4)
    wanted = {"loop": "has no folder part", "sub": "its build"}.get(target, "is outside of the repository")
    assert wanted in text
    if target in ("hop", "{outside}"):
        text = refused(locks(user, f"own @ {repository.url}#subdirectory=part/private"), 5)
        assert "is outside of the repository" in text


@needs_git
def test_a_link_to_a_folder_of_the_repository_is_followed(user: ImageUser, tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo.git", {f"py/own/{name}": body for name, body in PROJECT.items()})
    (repository.folder / "latest").symlink_to("py/own")
    repository.commit({"x": b"x"})
    succeeded(locks(user, f"own @ {repository.url}#subdirectory=latest"))
    assert user.pins()["own"] == "1.0"


@needs_git
def test_what_was_made_is_removed_and_nothing_else(user: ImageUser, outside: Path, tmp_path: Path) -> None:
    """A build that gives a platform's wheel is laid out a second time, and the first is removed: here, of a folder."""
    files = {f"py/own/{name}": body for name, body in COMPILED.items()}
    repository = Repository(tmp_path / "repo.git", files)
    (repository.folder / "py" / "own" / "data").symlink_to(outside)
    (repository.folder / "data").symlink_to(outside)
    repository.commit({"x": b"x"})
    text = refused(locks(user, f"own @ {repository.url}#subdirectory=py/own"), 6)
    assert "is for one platform" in text or "base image" in text
    assert (repository.folder / "py" / "own" / "backend.py").is_file()


@needs_git
def test_a_commit_in_a_lock_is_no_option_of_gits(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repo.git")
    for commit in ("--upload-pack=touch pwned;false", "-h", "main", "HEAD", "ab" * 20 + "\n", "AB" * 20, ""):
        with pytest.raises(EnvspecError, match="is not a commit"):
            checked_out(tmp_path, GitAddress(f"file://{repository.folder}"), commit)
    assert not list(tmp_path.rglob("pwned"))


def checked_out(tmp_path: Path, address: GitAddress, commit: str, **environ: str) -> Path:
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environ}
    return asyncio.run(check_out(address, commit, tmp_path / "clone", "own", variables))


@needs_git
def test_a_subdirectory_in_a_lock(tmp_path: Path, outside: Path) -> None:
    """A lock's address is read without the spec's checks."""
    repository = Repository(tmp_path / "repo.git")
    for subdirectory in ("../outside", "..", "/outside", ".git", ".git/hooks"):
        address = GitAddress(f"file://{repository.folder}", "", subdirectory)
        with pytest.raises(EnvspecError, match="is outside of the repository"):
            checked_out(tmp_path, address, repository.git("rev-parse", "HEAD"))
        shutil.rmtree(tmp_path / "clone")
    assert outside.is_dir()


@needs_git
@pytest.mark.parametrize("scheme", ["file://{}", "{}", "ext::sh -c touch% {}/pwned"])
@pytest.mark.parametrize("widened", [True, False])
def test_a_submodule_is_fetched_from_the_network_only(tmp_path: Path, scheme: str, *, widened: bool) -> None:
    """A repository that has a folder of this machine, or a program, as its submodule; also if git may use both."""
    private = Repository(tmp_path / "private.git", {"secret": b"sesame"})
    repository = Repository(tmp_path / "repo.git")
    modules = f'[submodule "sub"]\n\tpath = sub\n\turl = {scheme.format(private.folder)}\n\tupdate = checkout\n'
    repository.commit({".gitmodules": modules.encode()})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{private.git('rev-parse', 'HEAD')},sub")
    repository.git("commit", "--quiet", "--message", "submodule")
    if widened:
        (tmp_path / ".gitconfig").write_text('[protocol]\n\tallow = always\n[protocol "file"]\n\tallow = always\n')
    environ = {"GIT_ALLOW_PROTOCOL": "file:ext"} if widened else {}
    with pytest.raises(EnvspecError, match="not allowed"):
        checked_out(tmp_path, GitAddress(f"file://{repository.folder}"), repository.git("rev-parse", "HEAD"), **environ)
    assert not (tmp_path / "clone" / "sub" / "secret").exists()
    assert not (private.folder / "pwned").exists()


@needs_git
def test_a_folder_behind_the_users_own_rewriting_stays_as_it_is(tmp_path: Path) -> None:
    """`url.<folder>.insteadOf` makes a clone local, whose objects git would link."""
    repository = Repository(tmp_path / "mirror.git")
    (tmp_path / ".gitconfig").write_text(f'[url "{repository.folder}"]\n\tinsteadOf = https://example.org/repo\n')
    before = state(repository.folder / ".git" / "objects")
    project = checked_out(tmp_path, GitAddress("https://example.org/repo"), repository.git("rev-parse", "HEAD"))
    fix_times_and_modes(project, MOMENT)
    assert state(repository.folder / ".git" / "objects") == before


@pytest.mark.parametrize("target", ["{outside}", "../outside", "gone", "."])
def test_links_of_a_local_project(tmp_path: Path, outside: Path, target: str) -> None:
    project = write_files(tmp_path / "own", PROJECT)
    (project / "data").symlink_to(target.format(outside=outside))
    wanted = folder_source(project, tree_sha256(project))
    source = asyncio.run(wanted.lay_out(tmp_path / "work", "own"))
    fix_times_and_modes(source, MOMENT)
    assert (source / "data").is_symlink()
    shutil.rmtree(tmp_path / "work")
    assert (project / "own.py").is_file()


def test_a_link_to_a_local_project_is_built_like_the_folder(user: ImageUser, tmp_path: Path) -> None:
    project = write_files(tmp_path / "own", PROJECT)
    (tmp_path / "link").symlink_to(project)
    before = state(project)
    succeeded(locks(user, "own @ ../link"))
    assert state(project) == before


#: `up` leads to the top folder: what is above its parent is above the top, whatever the words say.
UP: Final = symlink("own-1/a/b/up", "../..")
TOP: Final = Member("own-1/setup.py", b"")
OUT: Final = "a/b/up/../../outside/own.py"
#: Beside those in `test_hostile_sdists.py`.
HOSTILE: Final = {
    "a link by another": (TOP, UP, symlink("own-1/x", OUT)),
    "a link that comes to lead out": (TOP, symlink("own-1/x", OUT), UP),
    "a file behind a link": (UP, symlink("own-1/d", "a/b/up/../.."), Member("own-1/d/outside/own.py", b"y")),
    "a folder that is a link": (symlink("own-1", "../outside"), Member("own-1/own.py", b"changed")),
    "the one top folder is a link to itself": (symlink("own-1", "."),),
    "a link to the top's parent": (TOP, symlink("own-1/x", "../..")),
    "a link twice": (TOP, symlink("own-1/x", "y"), symlink("own-1/x", "y")),
}


def packed(tmp_path: Path, members: Iterable[Member]) -> Path:
    path = tmp_path / "own-1.tar.gz"
    path.write_bytes(gzip.compress(tar_of(members)))
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_an_sdist_that_leads_out(tmp_path: Path, outside: Path, name: str) -> None:
    archive = packed(tmp_path, HOSTILE[name])
    with pytest.raises(WheelBuildFailed) as caught:
        fix_times_and_modes(unpack(archive, tmp_path / "src", "own 1"), MOMENT)
    assert "own-1.tar.gz" in caught.value.message and caught.value.hint
    assert not list(tmp_path.glob("*/own-1/y"))
    assert outside.is_dir()


def test_links_within_an_sdist_stay(tmp_path: Path) -> None:
    members = (
        Member("own-1/real/x", b"x"),
        *(symlink("own-1/there", "real/x"), symlink("own-1/folder", "real"), symlink("own-1/gone", "nowhere")),
        *(symlink("own-1/real/up", "../there"), hardlink("own-1/same", "own-1/real/x")),
    )
    top = unpack(packed(tmp_path, members), tmp_path / "src", "own 1")
    fix_times_and_modes(top, MOMENT)
    assert (top / "real/up").read_bytes() == (top / "same").read_bytes() == b"x"
    assert (top / "folder").is_symlink() and (top / "gone").is_symlink()


@needs_git
@pytest.mark.parametrize("is_plain", [True, False])
def test_a_login_of_netrc_is_not_sent_over_plain_http(tmp_path: Path, *, is_plain: bool) -> None:
    """The host is reached through a proxy, which sees what is sent in the clear; on this machine nobody does."""
    (tmp_path / ".netrc").write_text(
        "".join(f"machine {host} login me password s3cret\n" for host in ("git.corp", "127.0.0.1"))
    )
    with IndexServer(credentials=("me", "s3cret")) as server:
        url = "http://git.corp/repo.git" if is_plain else f"{server.root}/repo.git"
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "http_proxy": server.root,
            "no_proxy": "127.0.0.1",
        }
        with pytest.raises(EnvspecError, match="git can't read"):
            asyncio.run(commit_of(GitAddress(url), "own", environ))
        sent = ["authorization" in each.headers for each in server.requests]
    assert sent and any(sent) is not is_plain


@needs_git
def test_hashes_of_commits_of_either_length_are_commits(tmp_path: Path) -> None:
    """What is refused for its form is no real one."""
    repository = Repository(tmp_path / "repo.git")
    commit = repository.git("rev-parse", "HEAD")
    assert (checked_out(tmp_path, GitAddress(f"file://{repository.folder}"), commit) / "own.py").is_file()
    absent = hashlib.sha256(b"").hexdigest()
    shutil.rmtree(tmp_path / "clone")
    with pytest.raises(EnvspecError, match="not in the history of the default branch"):
        checked_out(tmp_path, GitAddress(f"file://{repository.folder}"), absent)
