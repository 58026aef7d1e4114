"""A secret of each kind is planted, and found nowhere: no lock, message, traceback, argument, cache or temporary file.

Each run shows its traceback (`--debug`), and each fault of a server is a way to a message of its own.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

from envspec.credentials import shown
from envspec.structs import replace
from tests.operations.test_build_projects import Repository, user_of
from tests.support.builders import conda_packages, ecosystem
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.environments import BASE, make_lock, pin, write_lock
from tests.support.builders.projects import PLAIN, MetadataFiles
from tests.support.builders.wheels import Artifact
from tests.support.secrets import Watch, forms, holding, secret
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Body, Corrupt, Drop, Fault, Redirects, Stall, Status
from tests.support.servers.git import GitServer
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, Ran, User, routed, succeeded

#: What a password may hold, each with a meaning of its own in some URL, shell or file.
SPECIAL: Final = "/?#@:%&=+$ '\"\\"
USER: Final = "me@corp"
ONCE: Final = {"ENVSPEC_HTTP_ATTEMPTS": "1", "NO_PROXY": "127.0.0.1"}
WHEEL: Final = "corp_core-1.2.0-py3-none-any.whl"


@dataclass
class Planted:
    """Somebody with a secret. words: the secret's variables, where it is in variables."""

    user: User
    planted: str
    own: list[Path] = field(default_factory=list)
    runs: list[Ran] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        (self.user.folder / "tmp").mkdir()
        self.user.environ |= {"TMPDIR": str(self.user.folder / "tmp"), **ONCE}
        self.own.append(self.user.spec)

    def run(self, *words: str | Path, **environ: str) -> Ran:
        with Watch(self.planted, self.user.folder / "tmp") as watch:
            ran = self.user.in_background((*words, "--debug"), {**self.user.environ, **environ}).ends()
        self.watched |= watch.found
        self.runs.append(ran)
        return ran

    def locks(self, *words: str, **environ: str) -> Ran:
        """`envspec lock`, watched."""
        return self.run("lock", self.user.spec.name, *words, **environ)

    def installs(self, artifact: Artifact, url: str | None = None, **environ: str) -> Ran:
        """`envspec install` of a lock of one wheel; by default, of the default index."""
        wheel = pin(artifact, url=url, index="corp") if url else pin(artifact)
        lock = write_lock(self.user.folder / "lock", make_lock(wheels=[wheel]))
        return self.run("install", lock, "--prefix", "env", "--python", BASE, **environ)

    def netrc(self, text: str) -> None:
        path = self.user.home / ".netrc"
        path.write_text(text)
        path.chmod(0o600)
        self.own.append(path)

    def check(self) -> None:
        """It is nowhere."""
        assert self.runs
        for ran in self.runs:
            for form in forms(self.planted):
                assert form not in ran.stdout, ran.stdout
                assert form not in ran.stderr, ran.stderr
        assert self.watched == set()
        assert holding(self.user.folder, self.planted, but=tuple(self.own)) == []


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "user", "http://127.0.0.1:9/simple/")


# Indexes and wheels by URL

#: Where a login stands: in the address, as variables, as a token alone.
LOGINS: Final[Mapping[str, Callable[[str], tuple[str, dict[str, str]]]]] = {
    "password": lambda planted: (f"{quote(USER, safe='')}:{quote(planted, safe='')}", {}),
    "variables": lambda planted: ("${WHO}:${WORD}", {"WHO": USER, "WORD": planted}),
    "token": lambda planted: (quote(planted, safe=""), {}),
}
#: What happens: a fault of the server on pages and files.
FAULTS: Final[Mapping[str, Fault]] = {
    "401": Status(401, {"WWW-Authenticate": 'Basic realm="index"'}),
    "404": Status(404),
    "500": Status(500),
    "bad-page": Body(b"<html>please log in</html>", "application/vnd.pypi.simple.v1+json"),
    "wrong-hash": Corrupt(),
    "drops": Drop(10),
    "stalls": Stall(),
    "redirects": Redirects(),
}


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer(ecosystem.private()) as server:
        yield server


def protected(index: IndexServer, kind: str, planted: str) -> tuple[str, dict[str, str]]:
    login, environ = LOGINS[kind](planted)
    index.credentials = (planted, "") if kind == "token" else (USER, planted)
    return login, environ


def fail(server: IndexServer, fault: str) -> Mapping[str, str]:
    """Let a server fail; the variables for a run that meets it."""
    if fault != "fine":
        server.fail("/files/*" if fault == "wrong-hash" else "*", FAULTS[fault])
    return SHORT_TIMEOUTS if fault == "stalls" else {}


def with_login(url: str, login: str) -> str:
    return url.replace("://", f"://{login}@", 1)


def cases(*faults: str) -> list[tuple[str, str]]:
    """Every form of a login where nothing happens and where it is refused, one form for the other faults."""
    both = [(kind, fault) for kind in LOGINS for fault in ("fine", "401")]
    return both + [("password", fault) for fault in faults]


@pytest.mark.parametrize(("kind", "fault"), cases(*list(FAULTS)[1:]))
def test_a_login_of_an_index(user: User, index: IndexServer, kind: str, fault: str) -> None:
    planted = Planted(user, secret(SPECIAL))
    login, environ = protected(index, kind, planted.planted)
    user.wants("corp-core", rest=routed("corp", with_login(index.url, login), "corp-*"))
    ran = planted.locks(**environ, **fail(index, fault))
    assert (ran.status == 0) == (fault == "fine"), ran.stderr
    assert ran.status in (0, 5)
    planted.check()


@pytest.mark.parametrize(("kind", "fault"), cases("404", "wrong-hash", "stalls", "redirects"))
def test_a_login_of_a_wheels_url(user: User, index: IndexServer, kind: str, fault: str) -> None:
    planted = Planted(user, secret(SPECIAL))
    login, environ = protected(index, kind, planted.planted)
    sha256 = next(file.sha256 for file in index.files_of("corp-core") if file.filename == WHEEL)
    user.wants(f"corp-core @ {with_login(index.file_url(WHEEL), login)}#sha256={sha256}")
    ran = planted.locks(**environ, **fail(index, fault))
    assert (ran.status == 0) == (fault == "fine"), ran.stderr
    planted.check()


@pytest.mark.parametrize("host", ["nowhere.invalid", "127.0.0.1:9"])
def test_a_server_that_is_not_there(user: User, host: str) -> None:
    planted = Planted(user, secret(SPECIAL))
    login = f"me:{quote(planted.planted, safe='')}"
    for wanted in (
        {"rest": routed("corp", f"http://{login}@{host}/simple", "corp-*")},
        {"names": f"corp-core @ http://{login}@{host}/{WHEEL}"},
    ):
        user.wants(wanted.get("names", "corp-core"), rest=wanted.get("rest", ""))
        assert planted.locks(HTTP_PROXY="", HTTPS_PROXY="").status == 5
    planted.check()


def test_an_index_that_signs_its_links(user: User, index: IndexServer) -> None:
    """Its files' addresses are good for one request: in a lock they would be a login until they end, and no address."""
    planted = Planted(user, secret())
    index.dialect = replace(index.dialect, metadata=MetadataFiles.NONE)
    page = index.answer("/simple/corp-core/", {"accept": "application/vnd.pypi.simple.v1+json"})
    body = re.sub(rb'("url": ?"[^"]*)', rb"\1?X-Amz-Signature=" + planted.planted.encode(), page.body)
    assert planted.planted.encode() in body
    index.fail("/simple/corp-core/", Body(body, page.headers["Content-Type"]))
    user.wants("corp-core", rest=routed("corp", index.url, "corp-*"))
    assert planted.locks().status == 0
    # Pages are kept as they came: they are the server's words, and no login of the user's.
    planted.own += [path for path in user.cache.rglob("*") if path.is_file()]
    planted.check()


RAW: Final = {
    "index-slash": '[[pip.index]]\nurl = "https://me:{a}/{b}@host.example/simple"\n',
    "index-question": '[[pip.index]]\nurl = "https://me:{a}?{b}@host.example/simple"\n',
    "index-hash": '[[pip.index]]\nurl = "https://me:{a}#{b}@host.example/simple"\n',
    "index-blank": '[[pip.index]]\nurl = "https://me:{a} {b}@host.example/simple"\n',
    "index-at-slash": '[[pip.index]]\nurl = "https://me:{a}@{b}/c@host.example/simple"\n',
    "index-path": '[[pip.index]]\nurl = "https://host.example/{a}{b}/simple"\n',
    "index-t": '[[pip.index]]\nurl = "https://host.example/t/{a}{b}/simple"\n',
    "index-query": '[[pip.index]]\nurl = "https://host.example/simple?token={a}{b}"\n',
    "index-fragment": '[[pip.index]]\nurl = "https://host.example/simple#{a}{b}"\n',
    "index-files": '[[pip.index]]\nurl = "https://h.example/s"\nfiles = ["https://me:{a}{b}@f.example"]\n',
    "index-name": '[[pip.index]]\nname = "https://me:{a}{b}@h.example"\nurl = "https://h.example/s"\n',
    "base": '[image]\nbase = "me:{a}{b}@registry.example/cuda:12"\n',
    "base-slash": '[image]\nbase = "me:{a}/{b}@registry.example/cuda:12"\n',
    "base-url": '[image]\nbase = "https://me:{a}{b}@registry.example/cuda:12"\n',
    "mirror": '[registry.mirrors]\n"docker.io" = "me:{a}{b}@registry.example"\n',
    "mirror-url": '[registry.mirrors]\n"docker.io" = "https://me:{a}{b}@registry.example"\n',
    "channel-slash": '[conda]\nchannels = ["https://me:{a}/{b}@conda.example/forge"]\n',
    "channel-hash": '[conda]\nchannels = ["https://me:{a}#{b}@conda.example/forge"]\n',
    "channel-query": '[conda]\nchannels = ["https://conda.example/forge?token={a}{b}"]\n',
    "match-spec": '[conda]\ndependencies = ["https://me:{a}{b}@conda.example/forge::x y z w"]\n',
    "unknown-key": '[pip.index_url]\nurl = "https://me:{a}{b}@host.example/simple"\n',
}
REQUIREMENTS: Final = {
    "wheel-slash": "x @ https://me:{a}/{b}@host.example/x-1-py3-none-any.whl",
    "wheel-hash": "x @ https://me:{a}#{b}@host.example/x-1-py3-none-any.whl",
    "wheel-question": "x @ https://me:{a}?{b}@host.example/x-1-py3-none-any.whl",
    "wheel-signed": "x @ https://host.example/x-1-py3-none-any.whl?X-Amz-Expires=9&X-Amz-Signature={a}{b}",
    "wheel-sas": "x @ https://host.example/x-1-py3-none-any.whl?sv=1&sig={a}{b}",
    "wheel-long": "x @ https://host.example/x-1-py3-none-any.whl?k={a}{b}",
    "sdist-signed": "x @ https://host.example/x-1.tar.gz?token={a}{b}",
    "wheel-name": "x @ https://me:{a}{b}@host.example/y-1-py3-none-any.whl",
    "wheel-fragment": "x @ https://host.example/x-1-py3-none-any.whl#token={a}{b}",
    "no-name": "https://me:{a}{b}@host.example/x-1-py3-none-any.whl",
    "option": "--index-url https://me:{a}{b}@host.example/simple",
    "find-links": "--find-links=https://me:{a}{b}@host.example/simple",
    "scheme": "x @ ftp://me:{a}{b}@host.example/x-1-py3-none-any.whl",
    "git-slash": "x @ git+https://me:{a}/{b}@host.example/x.git",
    "git-ssh": "x @ git+ssh://git:{a}{b}@host.example/x.git",
    "blank": "x @ https://me:{a} {b}@host.example/x-1-py3-none-any.whl",
    "marker": "x @ https://me:{a}{b}@host.example/x-1-py3-none-any.whl ; nonsense",
}


@pytest.mark.parametrize("kind", [*RAW, *REQUIREMENTS])
def test_a_secret_in_a_spec_that_is_refused(user: User, kind: str) -> None:
    planted = Planted(user, secret("/"))
    a, _, b = planted.planted.partition("/")
    if kind in RAW:
        index = 'name = "corp"\npackages = ["x"]\n' if kind.startswith("index") and kind != "index-name" else ""
        text = RAW[kind].format(a=a, b=b) + index
        user.writes(f'[env]\nname = "small"\npython = "3.11"\n{text}' + ("" if "[pip" in text else "[pip]\n"))
    else:
        user.wants(REQUIREMENTS[kind].format(a=a, b=b))
    ran = planted.locks()
    assert ran.status == 2, ran
    assert "hint: " in ran.stderr
    # A part of it may be shown no more than all.
    for part in (a, b):
        assert part not in ran.stdout + ran.stderr
    planted.check()


@pytest.mark.parametrize("where", ["index", "wheel", "git"])
def test_a_variable_that_is_not_set(user: User, where: str) -> None:
    url = "https://me:${CORP_WORD}@host.example"
    wanted = {"wheel": f"x @ {url}/x-1-py3-none-any.whl", "git": f"x @ git+{url}/x.git"}.get(where, "corp-core")
    user.wants("first", wanted, rest=routed("corp", f"{url}/simple", "corp-*") if where == "index" else "")
    ran = user.locks()
    assert ran.status == 2
    key = "pip.index[0].url" if where == "index" else "pip.dependencies[1]"
    line = next(n for n, row in enumerate(user.spec.read_text().splitlines(), 1) if "CORP_WORD" in row)
    assert f"spec.toml:{line}: {key}: the login is in the variable CORP_WORD, which is not set" in ran.stderr


@pytest.mark.parametrize("value", ["${W}", "me:${W}@x", "/simple/${W}", "?x=${W}"])
def test_a_variable_outside_of_a_login(user: User, value: str) -> None:
    user.wants("x", rest=routed("corp", f"https://host.example/{value}", "x"))
    assert "outside of its login" in user.locks().stderr or value.startswith("?")


def test_what_a_variable_has_decides_nothing(user: User, index: IndexServer) -> None:
    """The lock and the spec's hash are the same whatever the login, and without one."""
    made = []
    for url, environ in (
        (index.url, {}),
        (with_login(index.url, "${A}:${B}"), {"A": "x", "B": "/@?"}),
        (with_login(index.url, "${C}"), {"C": "y"}),
    ):
        user.wants("corp-core", as_of="2025-01-01T00:00:00Z", rest=routed("corp", url, "corp-*"))
        assert user.locks(NO_PROXY="127.0.0.1", **environ).status == 0
        made.append(user.files())
        shutil.rmtree(user.lock)
    assert made[0] == made[1] == made[2]


def test_a_password_in_a_spec_is_warned_of(user: User, index: IndexServer) -> None:
    for url, is_open in (
        (with_login(index.url, "me:sesame"), True),
        (with_login(index.url, "me:${W}"), False),
        (with_login(index.url, "${V}"), False),
    ):
        user.wants("corp-core", rest=routed("corp", url, "corp-*"))
        ran = user.locks(V="v", W="w", NO_PROXY="127.0.0.1")
        again = user.locks(V="v", W="w", NO_PROXY="127.0.0.1")
        checked = user.locks("--check")
        for each in (ran, again, checked):
            assert each.status == 0
            assert ("contains a password or a token" in each.stderr) == is_open, each.stderr
            assert "sesame" not in each.stderr


def test_a_password_is_warned_of_once_and_one_of_a_variant_with_it(user: User, index: IndexServer) -> None:
    login = with_login(index.url, "me:sesame")
    variants = routed("own", login, "own-*").replace("[[pip.index]]", "[variants.a]\n[[variants.b.pip.index]]")
    user.wants("corp-core", rest=routed("corp", login, "corp-*") + variants)
    keys = ["spec.toml:%d: pip.index[0].url contains", "spec.toml:%d: variants.b.pip.index[0].url contains"]
    for options in ([], [], ["--check"], ["--verify"]):
        ran = user.locks(*options, NO_PROXY="127.0.0.1")
        assert ran.status == 0, ran.stderr
        found = re.findall(r"(spec\.toml):(\d+)(: \S+ contains) a password", ran.stderr)
        assert [f"{file}:%d{rest}" for file, _, rest in found] == keys
        assert len({line for _, line, _ in found}) == 2


# The environment


@pytest.mark.parametrize("fault", ["fine", "401", "404", "500", "bad-page", "wrong-hash", "stalls"])
def test_the_default_indexs_login(user: User, index: IndexServer, fault: str) -> None:
    """While it is locked, and while it is installed, which uv does."""
    planted = Planted(user, secret(SPECIAL))
    login, _ = protected(index, "password", planted.planted)
    url = with_login(index.url, login)
    timeouts = fail(index, fault)
    user.wants("corp-core")
    installed = planted.installs(index.files_of("corp-core")[0].artifact, ENVSPEC_DEFAULT_INDEX=url, **timeouts)
    for ran in (planted.locks(ENVSPEC_DEFAULT_INDEX=url, **timeouts), installed):
        assert (ran.status == 0) == (fault == "fine"), ran.stderr
    planted.check()


def test_a_token_in_the_path_of_the_default_index(user: User) -> None:
    planted = Planted(user, secret())
    with IndexServer(ecosystem.private(), PLAIN, prefix=f"/{planted.planted}") as index:
        for fault in (None, Status(401), Status(404), Status(500), Body(b"{", "application/json")):
            if fault:
                index.fail("*", fault)
            user.wants("corp-core")
            planted.locks(ENVSPEC_DEFAULT_INDEX=index.url)
        doctor = planted.run("doctor", ENVSPEC_DEFAULT_INDEX=index.url)
        assert "index" in doctor.stdout
    # Where the cache is, pages are under the address that they came from.
    planted.own += [path for path in user.cache.rglob("*.sqlite*") if path.is_file()]
    planted.check()


def test_pips_and_uvs_own_settings(user: User, index: IndexServer) -> None:
    planted = Planted(user, secret())
    names = "PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS UV_INDEX_URL UV_DEFAULT_INDEX UV_INDEX UV_EXTRA_INDEX_URL"
    names += " UV_FIND_LINKS ENVSPEC_BUILT_WHEELS PIP_PROXY"
    environ = dict.fromkeys(names.split(), f"http://me:{planted.planted}@127.0.0.1:9/simple")
    environ["ENVSPEC_DEFAULT_INDEX"] = index.url
    user.wants("corp-core")
    assert planted.locks(**environ).status == 0
    assert planted.locks("--resolver", "pip-tools", "--upgrade", **environ).status == 0
    assert planted.installs(index.files_of("corp-core")[0].artifact, **environ).status == 0
    planted.run("doctor", **environ)
    planted.check()


@pytest.mark.parametrize("special", ["", "/", "#", "@"])
def test_a_proxys_login(user: User, special: str) -> None:
    """One that refuses it, one that is not there, one whose address can't be read."""
    planted = Planted(user, secret(special))
    with IndexServer(credentials=("no", "body")) as proxy:
        for host in (proxy.root.partition("//")[2], "127.0.0.1:9"):
            for word in {planted.planted, quote(planted.planted, safe="")}:
                environ = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), f"http://me:{word}@{host}") | {"NO_PROXY": ""}
                user.wants("corp-core", rest=routed("corp", "http://wheels.example/simple", "corp-*"))
                planted.run("doctor", **environ)
                environ["ENVSPEC_DEFAULT_INDEX"] = "http://wheels.example/simple"
                for ran in (planted.locks(**environ), planted.installs(ecosystem.private()[0].artifact, **environ)):
                    assert ran.status in (2, 5), ran.stderr
    planted.check()


@pytest.mark.parametrize(("text", "right"), [("password {}", True), ("password {}", False), ("{} x", True)])
def test_netrc(user: User, index: IndexServer, text: str, *, right: bool) -> None:
    planted = Planted(user, secret())
    index.credentials = ("me", planted.planted if right else "other")
    planted.netrc(f"machine 127.0.0.1 login me {text.format(planted.planted)}\n")
    wheel = index.files_of("corp-core")[0].artifact
    planted.installs(wheel, index.file_url(wheel.filename))
    planted.run("image", "build", user.folder / "lock", "--output", "image.tar")
    planted.check()


# Channels


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge(GOLDEN_PYTHON))


CHANNELS: Final = [
    *(("password", fault) for fault in ("fine", "401", "404", "bad-page", "drops", "not-there")),
    *(("variables", fault) for fault in ("fine", "401")),
    *(("token", fault) for fault in ("fine", "401", "404", "bad-page", "drops", "not-there")),
    ("token-variable", "fine"),
]


@pytest.mark.parametrize(("kind", "fault"), CHANNELS)
def test_a_login_of_a_channel(user: User, channel: CondaChannel, kind: str, fault: str) -> None:
    in_path = kind.startswith("token")
    planted = Planted(user, secret("" if in_path else SPECIAL))
    environ: dict[str, str] = {}
    login = (USER, planted.planted)
    with CondaServer(
        {"forge": channel}, credentials=None if in_path else login, prefix=f"/t/{planted.planted}" if in_path else ""
    ) as server:
        url = server.channel_url("forge")
        if kind == "token-variable":
            url, environ = url.replace(planted.planted, "${WORD}"), {"WORD": planted.planted}
        elif not in_path:
            words, environ = LOGINS[kind](planted.planted)
            url = with_login(url, words)
        if fault == "not-there":
            url = url.replace(str(server.port), "9")
        elif fault != "fine":
            server.fail("/forge/*", FAULTS[fault])
        user.writes(
            f'[env]\nname = "small"\npython = "3.12"\nas_of = 2026-06-01T00:00:00Z\n[conda]\nchannels = ["{url}"]\n'
            'dependencies = ["ffmpeg"]\n[pip]\n'
        )
        ran = planted.locks(**environ)
        assert (ran.status == 0) == (fault == "fine"), ran.stderr
    planted.check()


# Git


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")
@pytest.mark.parametrize("kind", LOGINS)
@pytest.mark.parametrize("right", [True, False])
def test_a_login_of_a_git_server(tmp_path: Path, kind: str, *, right: bool) -> None:
    with IndexServer([ecosystem.release("lib", "1.0.0")]) as index:
        Repository(tmp_path / "served" / "own.git")
        planted_secret = secret(SPECIAL)
        login, environ = LOGINS[kind](planted_secret)
        expected = (planted_secret, "") if kind == "token" else (USER, planted_secret)
        with GitServer(tmp_path / "served", login=expected if right else ("no", "body")) as server:
            user = user_of(tmp_path / "user", index, f"own @ git+{server.url('own.git', login)}")
            planted = Planted(user, planted_secret)
            planted.user.environ["PATH"] = f"{Path(str(shutil.which('git'))).parent}:{planted.user.environ['PATH']}"
            ran = planted.locks(**environ)
            assert (ran.status == 0) == right, ran.stderr
            if right:
                ran = planted.locks("--verify", **environ)
                assert "Authentication" not in ran.stderr
    planted.check()


# Images


def test_an_image_of_what_was_locked_with_a_login(tmp_path: Path) -> None:
    """Layers, configuration and history; the Dockerfile and the requirements beside the lock."""
    planted_secret = secret(SPECIAL)
    with IndexServer(ecosystem.private()) as index, IndexServer([ecosystem.release("lib", "1.0.0")]) as other:
        login, environ = protected(index, "variables", planted_secret)
        user = user_of(tmp_path / "user", other, f"corp-core @ {with_login(index.file_url(WHEEL), login)}")
        planted = Planted(user, planted_secret)
        planted.netrc(f'machine 127.0.0.1 login "{USER}" password "{quote(planted_secret)}"\n')
        index.credentials = (USER, planted_secret)
        assert planted.locks(**environ).status == 0
        index.credentials = (USER, quote(planted_secret))
        for way in ("--output", "--layout"):
            succeeded(planted.run("image", "build", user.lock, way, f"image{way}", **environ))
    planted.check()


@pytest.mark.parametrize("name", ["ENVSPEC_REGISTRY_MIRRORS", "--mirror"])
@pytest.mark.parametrize("scheme", ["", "https://"])
def test_a_login_of_a_mirror(tmp_path: Path, name: str, scheme: str) -> None:
    with IndexServer([ecosystem.release("lib", "1.0.0")]) as index:
        user = user_of(tmp_path / "user", index, "lib")
        planted = Planted(user, secret())
        assert user.locks().status == 0
        shutil.rmtree(user.cache / "blobs")
        value = f"docker.io={scheme}me:{planted.planted}@registry.example"
        if name.startswith("-"):
            # It is in an argument already, which is the user's own.
            ran = user.runs("image", "build", user.lock, "--output", "image.tar", name, value, "--debug")
            planted.runs.append(ran)
        else:
            ran = planted.run("image", "build", user.lock, "--output", "image.tar", **{name: value})
        assert ran.status != 0
    planted.check()


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("https://user:pw@host/x?sig=abc#frag", "https://host/x?…#…"),
        ("git can't read https://h.example/r.git: no", "git can't read https://h.example/r.git: no"),
        ("a https://u:1/x@h.example/a and git+https://u@b/c?d", "a https://h.example/a and git+https://b/c?…"),
        ("ssh://git:pw@host/x, http://[::1]:8/x", "ssh://git@host/x, http://[::1]:8/x"),
        ("https://${A}:${B}@host/x", "https://${A}:${B}@host/x"),
        ("https://host:8443: HTTP 404", "https://host:8443: HTTP 404"),
        ("own @ git+https://host/r.git@v1#subdirectory=a", "own @ git+https://host/r.git@v1#subdirectory=a"),
        ("https://c.example/t/abc/chan/x", "https://c.example/t/…/chan/x"),
        (f"https://h.example/{'ab' * 32}/x", f"https://h.example/{'ab' * 32}/x"),
        ("file:///a/b@c/d", "file:///a/b@c/d"),
    ],
)
def test_what_is_shown(text: str, is_shown: str) -> None:
    assert shown(text) == is_shown
    assert shown(is_shown) == is_shown
