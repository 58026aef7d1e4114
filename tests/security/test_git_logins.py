"""Logins in git's addresses: the server that they are for gets them, and nobody and nothing else."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from envspec import documents
from envspec.errors import EnvspecError
from envspec.fetch.sources import check_out, commit_of, is_reachable
from envspec.spec.errors import BadValue
from envspec.spec.identity import input_sha256
from envspec.spec.requirements import GitAddress, read_git, read_requirement
from tests.operations.test_build_projects import PROJECT, Repository, user_of
from tests.support.builders import ecosystem
from tests.support.builders.environments import BASE, installs
from tests.support.builders.locks import replacing, tamper
from tests.support.servers.git import GitServer
from tests.support.servers.index import IndexServer
from tests.support.user import succeeded

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")

USER, PASSWORD = "a@corp", "s3s/ame#?@'\"$x"
LOGIN = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}"
FORMS = [
    PASSWORD,
    quote(PASSWORD, safe=""),
    base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(),
    quote(USER, safe=""),
]


class Place:
    """A repository behind a login, and a git that writes down how it is called."""

    def __init__(self, folder: Path, server: GitServer, repository: Repository) -> None:
        self.folder, self.server, self.repository = folder, server, repository
        self.environ = {"PATH": f"{recorders(folder)}:{os.environ['PATH']}", "HOME": str(folder / "home")}
        (folder / "home").mkdir()

    @property
    def calls(self) -> str:
        path = self.folder / "calls"
        return path.read_text() if path.is_file() else ""

    def configures(self, text: str) -> None:
        (self.folder / "home" / ".gitconfig").write_text(text)

    def leaves(self) -> str:
        """What is in all files but the server's."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        own = (path for path in found if self.repository.folder not in path.parents)
        return "\0".join(path.read_bytes().decode("latin-1") for path in own)


def recorders(folder: Path) -> Path:
    """A folder with a `git` that writes the arguments of itself and of all processes below it to `calls`.

    Git starts its own programs from its own folder, which is copied by links with the recorder in between.
    """
    real = Path(os.popen("git --exec-path").read().strip())
    programs = folder / "git-core"
    programs.mkdir()
    for path in real.iterdir():
        (programs / path.name).symlink_to(path)
    record = f"printf '%s\\n' \"$0 $*\" >>{folder}/calls\nexport GIT_EXEC_PATH={programs}\n"
    for name in ("git", "git-remote-http", "git-remote-https"):
        program = real / name if name != "git" else Path(str(shutil.which("git")))
        (programs / name).unlink(missing_ok=True)
        (programs / name).write_text(f'#!/bin/sh\n{record}exec {program} "$@"\n')
        (programs / name).chmod(0o755)
    return programs


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    repository = Repository(tmp_path / "served" / "own.git")
    with GitServer(tmp_path / "served", login=(USER, PASSWORD)) as server:
        yield Place(tmp_path, server, repository)


def taken(place: Place, address: str, **environ: str) -> Path:
    """The project as it is at the address now, in a clone."""
    read, variables = read_git(address), {**place.environ, **environ}

    async def take() -> Path:
        commit = await commit_of(read, "own", variables)
        return await check_out(read, commit, place.folder / "clone", "own", variables)

    return asyncio.run(take())


@pytest.mark.parametrize("login", [LOGIN, "${WHO}:${WORD}", "${WHO}:" + quote(PASSWORD, safe="")])
def test_a_login_is_in_no_argument_and_no_file(place: Place, login: str) -> None:
    place.configures(f"[credential]\n\thelper = store --file={place.folder}/stored\n")
    environ = {"WHO": USER, "WORD": PASSWORD, "GIT_TRACE": str(place.folder / "trace"), "GIT_TRACE_REDACT": "0"}
    environ["GIT_TRACE_CURL"] = str(place.folder / "curl")
    address = place.server.url("own.git", login)
    assert (taken(place, f"git+{address}", **environ) / "backend.py").is_file()
    assert asyncio.run(
        is_reachable(read_git(address), place.repository.git("rev-parse", "HEAD"), "own", {**place.environ, **environ})
    )
    assert "git-remote-http" in place.calls
    for form in FORMS:
        assert form not in place.calls
        assert form not in place.leaves()


@pytest.mark.parametrize("secret", ["wr0ng", "wr/ng#1"])
def test_a_wrong_password_is_in_no_message(place: Place, secret: str) -> None:
    with pytest.raises(EnvspecError) as caught:
        taken(place, place.server.url("own.git", f"user:{quote(secret, safe='')}"))
    assert secret not in str(caught.value)
    assert quote(secret, safe="") not in str(caught.value) + place.calls
    assert "Authentication failed" in str(caught.value)


def test_the_users_own_configuration_goes_on_to_work(place: Place) -> None:
    """Its helpers for addresses without a login, and what `GIT_CONFIG_COUNT` adds."""
    (place.folder / "stored").write_text(f"http://{LOGIN}@{quote(place.server.host, safe='')}\n")
    settings = {
        f"url.http://{place.server.host}/.insteadOf": "http://git.example/",
        "credential.helper": f"store --file={place.folder}/stored",
    }
    environ = {"GIT_CONFIG_COUNT": "2"}
    for number, (key, value) in enumerate(settings.items()):
        environ |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    for at, address in enumerate(["http://git.example/own.git", place.server.url("own.git", quote(USER, safe=""))]):
        assert (taken(place, address, **environ) / "backend.py").is_file()
        (place.folder / "clone").rename(place.folder / f"clone{at}")


def test_a_token_alone(tmp_path: Path) -> None:
    """As a user without a password, which many servers take."""
    repository = Repository(tmp_path / "served" / "own.git")
    with GitServer(tmp_path / "served", login=("t0ken-1234", "")) as server:
        place = Place(tmp_path, server, repository)
        assert (taken(place, server.url("own.git", "${TOKEN}"), TOKEN="t0ken-1234") / "backend.py").is_file()
        assert "t0ken-1234" not in place.calls + place.leaves()


@pytest.mark.parametrize("follow", ["", "[http]\n\tfollowRedirects = true\n"])
def test_a_login_does_not_go_with_a_redirect(place: Place, tmp_path: Path, follow: str) -> None:
    place.configures(follow)
    with GitServer(tmp_path, wants_login=True) as other:
        place.server.leads_to = f"http://{other.host}"
        with pytest.raises(EnvspecError):
            taken(place, place.server.url("own.git", LOGIN))
        assert other.seen
        assert all(not sent for _, sent in other.seen)


def add_submodule(repository: Repository, url: str, commit: str) -> None:
    repository.commit({".gitmodules": f'[submodule "sub"]\n\tpath = sub\n\turl = {url}\n'.encode()})
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    repository.git("commit", "--quiet", "--message", "submodule")


def test_a_login_does_not_go_to_a_submodule_elsewhere(place: Place, tmp_path: Path) -> None:
    with GitServer(tmp_path, wants_login=True) as other:
        add_submodule(place.repository, other.url("sub.git"), place.repository.git("rev-parse", "HEAD"))
        with pytest.raises(EnvspecError):
            taken(place, place.server.url("own.git", LOGIN))
        assert other.seen
        assert all(not sent for _, sent in other.seen)


def test_a_submodule_beside_it_gets_it(place: Place) -> None:
    commit = Repository(place.folder / "served" / "sub.git", {"inner": b"x"}).git("rev-parse", "HEAD")
    add_submodule(place.repository, "../sub.git", commit)
    assert (taken(place, place.server.url("own.git", LOGIN)) / "sub" / "inner").is_file()
    assert all(form not in place.calls for form in FORMS)


@pytest.mark.parametrize(
    "address",
    [
        *("git+https://user:s3/same@git.example/own.git", "git+https://user:s3?same@git.example/own.git@main"),
        *("git+https://user:s3#same@git.example/own.git", "git+https://user:1/s3same@git.example/own.git"),
        *("git+https://s3:same@x/s3same@git.example/own.git", "git+ssh://git:s3same@git.example/own.git"),
        *("git+https://user:s3same%0Ahost=evil.example@git.example/own.git", "git+https://git.example/${s3same}/x.git"),
        "git+https://git.example/own.git?token=s3same",
    ],
)
def test_an_address_whose_password_git_would_show_is_refused(address: str) -> None:
    with pytest.raises(BadValue) as caught:
        read_requirement(f"own @ {address}")
    if "$" not in address:
        assert "same" not in caught.value.found + caught.value.hint


class Forked:
    """A repository whose server gives commits of a fork, too, as some do: by their digits, and by a ref of theirs."""

    def __init__(self, folder: Path) -> None:
        self.origin = Repository(folder / "own.git")
        self.main = self.origin.git("rev-parse", "HEAD")
        self.origin.git("checkout", "--quiet", "-b", "evil")
        self.fork = self.origin.commit({"backend.py": PROJECT["backend.py"] + b"# evil\n"})
        self.origin.git("checkout", "--quiet", "main")
        self.origin.git("update-ref", "refs/pull/12/head", self.fork)
        self.origin.git("branch", "--quiet", "-D", "evil")
        self.origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.origin.git("config", "uploadpack.allowFilter", "true")

    def address(self, ref: str) -> GitAddress:
        return GitAddress(f"file://{self.origin.folder}", ref)


def outcome(forked: Forked, ref: str, commit: str, tmp_path: Path) -> str:
    """What both ways to look say, which must be the same."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    address = forked.address(ref)
    reachable = asyncio.run(is_reachable(address, commit, "own", environ))
    try:
        asyncio.run(check_out(address, commit, Path(tempfile.mkdtemp(dir=tmp_path), "clone"), "own", environ))
    except EnvspecError as error:
        assert not reachable
        return str(error)
    assert reachable
    return ""


def test_a_commit_of_a_fork_is_refused(tmp_path: Path) -> None:
    forked = Forked(tmp_path)
    for ref in ("", "main", forked.fork, "refs/heads/main"):
        message = outcome(forked, ref, forked.fork, tmp_path)
        assert f"commit {forked.fork} is " in message and "refs/pull/NUMBER/head" in message


def test_a_commit_of_the_repository_is_taken(tmp_path: Path) -> None:
    forked = Forked(tmp_path)
    forked.origin.git("-c", "user.name=a", "-c", "user.email=a@b", "tag", "-a", "-m", "one", "v1")
    for ref in ("", "main", forked.main, "v1", "refs/heads/main", "refs/tags/v1", "refs/pull/12/head"):
        assert outcome(forked, ref, forked.main, tmp_path) == "", ref


def test_commits_of_other_refs(tmp_path: Path) -> None:
    """Of a named ref, of another branch, and of a branch that was rewritten."""
    forked = Forked(tmp_path)
    assert outcome(forked, "refs/pull/12/head", forked.fork, tmp_path) == ""
    forked.origin.git("branch", "other", forked.fork)
    assert "not in the history of 'main'" in outcome(forked, "main", forked.fork, tmp_path)
    forked.origin.git("commit", "--amend", "--quiet", "--message", "other")
    assert "--upgrade-package" in outcome(forked, "main", forked.main, tmp_path)


def test_a_lock_of_a_commit_of_a_fork(tmp_path: Path) -> None:
    """Refused when it is made and when it is verified; one of a ref that the spec names is locked and installed."""
    forked = Forked(tmp_path)
    with IndexServer([ecosystem.release("lib", "1.0.0")]) as index:
        user = user_of(tmp_path / "user", index, f"own @ git+{forked.address('').url}@{forked.fork}")
        assert "is on no branch or tag" in user.locks().stderr
        spec = user.spec.read_text()
        user.spec.write_text(spec.replace(forked.fork, "refs/pull/12/head"))
        succeeded(user.locks())
        assert forked.fork in user.packages()["own"]["file"]["url"]
        # In a pull request that names the commit itself, its wheel is in the cache of whoever verifies it.
        made, own = user.files(), user.spec.read_text()
        user.spec.write_text(own.replace("refs/pull/12/head", forked.fork))
        hashes = [input_sha256(documents.parse_toml(text)) for text in (own, user.spec.read_text())]
        tamper(user.lock, replacing(("@refs/pull/12/head", f"@{forked.fork}"), (hashes[0], hashes[1])))
        assert "is on no branch or tag" in user.locks("--verify").stderr
        user.spec.write_text(own)
        for name, content in made.items():
            (user.lock / name).write_bytes(content)
        for folder in ("archives", "built"):
            shutil.rmtree(user.cache / folder)
        succeeded(installs(user, user.lock, "--python", BASE))
