"""What builds require comes from where the lock's packages come from: a private index's names from no other."""

from __future__ import annotations

import base64
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.build.types import BuildRequest, BuildSource, Compilers
from envspec.lockfile.folder import read_lock, write_folder
from envspec.models import BuiltWheel, NamedIndex, Platform, Python, Target
from envspec.operations.lock.complete import lock_files
from envspec.structs import replace
from tests.conftest import Serve
from tests.operations.test_build_projects import Repository, write
from tests.operations.test_build_sdists import with_files
from tests.support.builders import ecosystem
from tests.support.builders.environments import BASE, RUNNING, run_in
from tests.support.builders.projects import PLAIN, File, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.faults import Status
from tests.support.servers.index import IndexServer
from tests.support.user import SHORT_TIMEOUTS, User, refused, routed, succeeded

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")

AS_OF: Final = "2026-06-01T00:00:00Z"
SECRET: Final = "s3cr3t-t0ken"
#: A backend that leaves its version, its mark, in the wheel.
BACKEND: Final = """
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    info = "own-1.0.dist-info"
    content = {
        "own.py": "BY = 'VERSION'\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: corp\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(Path(wheel_directory, "own-1.0-py3-none-any.whl"), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return "own-1.0-py3-none-any.whl"
"""


def backend(version: str, uploaded: str = "2024-01-01", name: str = "corp-backend") -> File:
    return File(wheel(name, version, files={"corp_backend.py": backend_code(version)}), day(uploaded))


def backend_code(version: str) -> bytes:
    return BACKEND.replace("VERSION", version).encode()


def project(requires: str = '["corp-backend"]', more: str = "") -> dict[str, bytes]:
    text = f'[build-system]\nrequires = {requires}\nbuild-backend = "corp_backend"\n{more}'
    return {"pyproject.toml": text.encode()}


#: As an sdist; of metadata 2.1, so that a resolver builds it to know what it requires.
OWN: Final = with_files(sdist("own", "1.0"), project())


@pytest.fixture
def public() -> Iterator[IndexServer]:
    with IndexServer([backend("99.0"), File(OWN, day("2024-01-01"))]) as running:
        yield running


@pytest.fixture
def corp() -> Iterator[IndexServer]:
    with IndexServer([backend("1.0")]) as running:
        yield running


def routes_to(url: str, *patterns: str, undated: str | None = None) -> str:
    return routed("corp", url, *(patterns or ("corp-*",)), undated=undated)


def user_of(folder: Path, public: IndexServer, wanted: str, rest: str, *, pip: str = "") -> User:
    user = User(folder, public.url, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
    user.wants(wanted, as_of=AS_OF, python=RUNNING, rest=rest, pip=pip)
    return user


def local_user(folder: Path, public: IndexServer, rest: str, files: Mapping[str, bytes] | None = None) -> User:
    write(folder / "own", files or project())
    return user_of(folder, public, "own @ ./own", rest)


def mark_of(user: User) -> str:
    """The version of the backend that made the locked wheel."""
    built = user.packages()["own"]["built"]
    with zipfile.ZipFile(user.cache / "archives" / built["sha256"] / built["filename"]) as archive:
        return archive.read("own.py").decode().split("'")[1]


def installed_elsewhere(user: User, folder: Path, public: IndexServer, **environ: str) -> str:
    """What made the wheel that somebody gets who has the lock alone, and an empty cache."""
    other = User(folder, public.url, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1", **environ)
    shutil.copytree(user.lock, other.lock)
    succeeded(other.runs("install", other.lock, "--prefix", "env", "--python", BASE))
    return run_in(other.folder / "env", "python", "-c", "import own; print(own.BY)")


def made_by_corp(user: User, public: IndexServer, elsewhere: Path | None = None) -> None:
    """The private index's backend made what was locked. elsewhere: also what somebody else builds from the lock."""
    succeeded(user.locks())
    assert mark_of(user) == "1.0"
    if elsewhere:
        assert installed_elsewhere(user, elsewhere, public) == "1.0"
    assert public.requests_for("*corp-*") == []


#: A backend that requires corp-backend while it builds, as `setup_requires` does.
ASKING: Final = {
    "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "own_backend"\nbackend-path = ["."]\n',
    "own_backend.py": b"def get_requires_for_build_wheel(config_settings=None):\n    return ['corp-backend']\n"
    b"def build_wheel(*words):\n    import corp_backend\n    return corp_backend.build_wheel(*words)\n",
}


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        (("corp-*",), project()),
        (("Corp_Backend",), project()),
        (("corp-*",), ASKING),
        # What a requirement of a build requires.
        (("corp-*",), project('["tool"]')),
    ],
)
def test_a_local_project(
    tmp_path: Path, public: IndexServer, corp: IndexServer, patterns: tuple[str, ...], files: dict[str, bytes]
) -> None:
    public.add(ecosystem.release("tool", "1.0", requires=["corp-backend"]))
    made_by_corp(local_user(tmp_path, public, routes_to(corp.url, *patterns), files), public)


def test_without_a_route_the_public_one_is_taken(tmp_path: Path, public: IndexServer) -> None:
    """The tests here would pass with any index that lacks the stranger's backend."""
    user = local_user(tmp_path, public, "")
    assert user.locks().status == 0
    assert mark_of(user) == "99.0"
    assert "[[index]]" not in (user.lock / "envspec.lock").read_text()


def test_a_git_project_and_an_sdist_by_url(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git", project())
    for name, wanted in (("git", f"{repository.url}@main"), ("sdist", public.file_url(OWN.filename))):
        user = user_of(tmp_path / name, public, f"own @ {wanted}", routes_to(corp.url))
        made_by_corp(user, public, tmp_path / f"{name}-elsewhere")


def test_an_allowed_sdist_when_resolved_and_when_built_of_the_lock(
    tmp_path: Path, public: IndexServer, corp: IndexServer
) -> None:
    user = user_of(tmp_path / "user", public, "own", routes_to(corp.url), pip='build.packages = ["own"]')
    succeeded(user.locks())
    assert [request.path for request in corp.requests if request.path.endswith(".whl")]
    assert read_lock(user.lock).indexes == (NamedIndex("corp", corp.url.rstrip("/"), ("corp-*",)),)
    assert installed_elsewhere(user, tmp_path / "other", public) == "1.0"
    assert public.requests_for("*corp-*") == []


def test_a_name_that_its_index_lacks_is_an_error(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    """No older release is a way round: uv would take tool 1.0, which does without, and build by that."""
    corp.remove("corp-backend")
    public.add(backend("1.0", name="tool"))
    public.add(ecosystem.release("tool", "2.0", requires=["corp-backend"]))
    for files in (project(), project('["tool"]')):
        user = local_user(tmp_path, public, routes_to(corp.url), files)
        assert refused(user.locks(), 5).startswith(f"index corp ({corp.url}) does not have corp-backend")
        assert user.files() == {} and public.requests_for("*corp-*") == []


def test_an_index_that_fails_is_an_error(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    corp.fail("/simple/corp-backend/", Status(500))
    with IndexServer([]) as gone:
        missing = gone.url
    for url, message in ((corp.url, f"{corp.url}corp-backend/: HTTP 500"), (missing, missing)):
        user = local_user(tmp_path, public, routes_to(url))
        assert message in refused(user.locks(**SHORT_TIMEOUTS), 5)
    assert public.requests_for("*corp-*") == []


def test_an_index_without_upload_times_is_refused_unless_the_spec_accepts_it(
    tmp_path: Path, public: IndexServer, serve: Serve
) -> None:
    corp = serve([backend("1.0")], PLAIN)
    user = local_user(tmp_path, public, routes_to(corp.url))
    assert "index corp gives no upload times for corp-backend" in refused(user.locks(), 5)
    user = local_user(tmp_path, public, routes_to(corp.url, undated="accept"))
    succeeded(user.locks())
    assert mark_of(user) == "1.0"
    assert read_lock(user.lock).indexes[0].undated


def test_a_private_index_is_as_old_as_the_lock(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    corp.add(backend("2.0", "2026-08-01"))
    user = local_user(tmp_path, public, routes_to(corp.url))
    assert user.locks().status == 0
    assert mark_of(user) == "1.0"


def test_credentials_reach_the_index_and_stay_where_they_are(tmp_path: Path, public: IndexServer, serve: Serve) -> None:
    corp = serve([backend("1.0")], credentials=("me", SECRET))
    repository = Repository(tmp_path / "repo.git", project())
    user = user_of(tmp_path / "user", public, f"own @ {repository.url}@main", routes_to(corp.url_with_credentials))
    ran = succeeded(user.locks())
    assert mark_of(user) == "1.0"
    assert read_lock(user.lock).indexes == (NamedIndex("corp", corp.url.rstrip("/"), ("corp-*",)),)
    user.spec.unlink()
    for secret in (SECRET.encode(), base64.b64encode(f"me:{SECRET}".encode())):
        assert secret not in user.leaves()
        assert secret not in (ran.stdout + ran.stderr).encode()
    assert not any("authorization" in request.headers for request in public.requests)
    # Who has the lock alone has a login of their own.
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    assert installed_elsewhere(user, tmp_path / "other", public, NETRC=str(netrc)) == "1.0"
    third = User(tmp_path / "third", public.url)
    shutil.copytree(user.lock, third.lock)
    shown = refused(third.runs("install", third.lock, "--prefix", "env", "--python", BASE), 5)
    assert f"{corp.url}corp-backend/: HTTP 401" in shown
    assert public.requests_for("*corp-*") == []


def test_the_wheel_of_other_routes_is_not_taken(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    """Neither from the cache, nor by the old lock."""
    user = local_user(tmp_path, public, "")
    assert user.locks().status == 0
    assert mark_of(user) == "99.0"
    user.wants("own @ ./own", as_of=AS_OF, python=RUNNING, rest=routes_to(corp.url))
    assert user.locks().status == 0
    assert mark_of(user) == "1.0"


def test_the_recorded_wheel_of_other_routes_is_not_taken(
    tmp_path: Path, public: IndexServer, corp: IndexServer
) -> None:
    """The wheel of an allowed sdist, which an image's record carries over from the lock before."""
    user = user_of(tmp_path, public, "own", "", pip='build.packages = ["own"]')
    assert user.locks().status == 0
    lock = read_lock(user.lock)
    made = backend("99.0").artifact
    part = lock.resolutions[0]
    built = BuiltWheel("own-1.0-py3-none-any.whl", made.sha256, made.size_bytes)
    packages = tuple(replace(each, built=built) for each in part.packages)
    write_folder(user.lock, lock_files(replace(lock, resolutions=(replace(part, packages=packages),))))
    assert user.packages()["own"]["built"]["sha256"] == made.sha256
    user.wants("own", as_of=AS_OF, python=RUNNING, rest=routes_to(corp.url), pip='build.packages = ["own"]')
    succeeded(user.locks())
    assert user.packages()["own"]["built"]["sha256"] != made.sha256


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a stranger's corp-backend lies: on an index that nobody has named, in a folder, and in a repository."""

    index: IndexServer
    folder: Path
    repository: Path

    @property
    def wheel(self) -> Path:
        return next(self.folder.glob("*.whl"))

    def fill(self, text: str) -> str:
        """`text` with the places in it."""
        places = {
            "INDEX": self.index.url,
            "PAGE": self.index.file_url(self.wheel.name),
            "HOST": self.index.root.partition("://")[2],
            "FOLDER": str(self.folder),
            "WHEEL": str(self.wheel),
            "REPOSITORY": str(self.repository),
        }
        for name, place in places.items():
            text = text.replace(f"<{name}>", place)
        return text


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    made = backend("99.0")
    folder = tmp_path / "elsewhere"
    write(folder, {made.artifact.filename: made.artifact.data, "corp_backend.py": backend_code("99.0")})
    text = project("[]", 'backend-path = ["."]\n[project]\nname = "corp-backend"\nversion = "99.0"\n')
    repository = Repository(tmp_path / "elsewhere.git", {**text, "corp_backend.py": backend_code("99.0")})
    with IndexServer([made]) as index:
        yield Elsewhere(index, folder, repository.folder)


#: What a project may say of where its requirements come from, in a file of its own.
SETTINGS: Final = {
    "sources: url": ("pyproject.toml", '[tool.uv.sources]\ncorp-backend = { url = "<PAGE>" }\n'),
    "sources: path": ("pyproject.toml", '[tool.uv.sources]\ncorp-backend = { path = "<WHEEL>" }\n'),
    "sources: git": ("pyproject.toml", '[tool.uv.sources]\ncorp-backend = { git = "file://<REPOSITORY>" }\n'),
    "sources: index": (
        "pyproject.toml",
        '[tool.uv.sources]\ncorp-backend = { index = "x" }\n[[tool.uv.index]]\nname = "x"\nurl = "<INDEX>"\n',
    ),
    "index": ("pyproject.toml", '[[tool.uv.index]]\nname = "x"\nurl = "<INDEX>"\ndefault = true\n'),
    "index-url": ("pyproject.toml", '[tool.uv]\nindex-url = "<INDEX>"\nextra-index-url = ["<INDEX>"]\n'),
    "find-links": ("pyproject.toml", '[tool.uv]\nfind-links = ["<FOLDER>"]\n'),
    "tool.uv.pip": ("pyproject.toml", '[tool.uv.pip]\nindex-url = "<INDEX>"\nfind-links = ["<FOLDER>"]\n'),
    "extra-build-dependencies": (
        "pyproject.toml",
        '[tool.uv.extra-build-dependencies]\nproject = ["corp-backend @ file://<WHEEL>"]\n'
        'own = ["corp-backend @ file://<WHEEL>"]\n',
    ),
    "build-constraints": (
        "pyproject.toml",
        '[tool.uv]\nbuild-constraint-dependencies = ["corp-backend @ file://<WHEEL>"]\n'
        'override-dependencies = ["corp-backend @ file://<WHEEL>"]\n',
    ),
    "uv.toml": ("uv.toml", 'index-url = "<INDEX>"\nextra-index-url = ["<INDEX>"]\nfind-links = ["<FOLDER>"]\n'),
    "pip.conf": ("pip.conf", "[global]\nindex-url = <INDEX>\nfind-links = <FOLDER>\n"),
    "setup.cfg": ("setup.cfg", "[easy_install]\nindex_url = <INDEX>\nfind_links = <FOLDER>\n"),
    ".env": (".env", "UV_DEFAULT_INDEX=<INDEX>\nPIP_INDEX_URL=<INDEX>\nUV_FIND_LINKS=<FOLDER>\n"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_projects_settings_lead_nowhere(
    tmp_path: Path, public: IndexServer, corp: IndexServer, elsewhere: Elsewhere, name: str
) -> None:
    where, text = SETTINGS[name]
    more = elsewhere.fill(text)
    files = project(more=more) if where == "pyproject.toml" else {**project(), where: more.encode()}
    user = local_user(tmp_path, public, routes_to(corp.url), files)
    succeeded(user.locks())
    assert mark_of(user) == "1.0"
    assert elsewhere.index.requests == [] and public.requests_for("*corp-*") == []


def test_a_machines_settings_lead_nowhere(
    tmp_path: Path, public: IndexServer, corp: IndexServer, elsewhere: Elsewhere
) -> None:
    url, folder = elsewhere.index.url, str(elsewhere.folder)
    user = local_user(tmp_path, public, routes_to(corp.url))
    settings = write(tmp_path, {"uv.toml": f'index-url = "{url}"\n'.encode()}) / "uv.toml"
    for path in (".config/uv/uv.toml", ".config/pip/pip.conf", ".pip/pip.conf"):
        text = f'index-url = "{url}"\n' if path.endswith("toml") else f"[global]\nindex-url = {url}\n"
        write(user.home, {path: text.encode()})
    environ = dict.fromkeys(("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"), url)
    environ |= dict.fromkeys(("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"), url)
    environ |= dict.fromkeys(("UV_FIND_LINKS", "PIP_FIND_LINKS"), folder)
    succeeded(user.locks(**environ, UV_CONFIG_FILE=str(settings), UV_NO_PROXY="*", NO_PROXY="*", no_proxy="*"))
    assert mark_of(user) == "1.0"
    assert elsewhere.index.requests == [] and public.requests_for("*corp-*") == []


ADDRESSES: Final = (
    *("<PAGE>", "file://<WHEEL>", "file://<REPOSITORY>", "git+http://<HOST>/x.git", "git+file://<REPOSITORY>"),
    *("git+ssh://git@<HOST>/x.git", "https://files.example.invalid/corp_backend-99.0-py3-none-any.whl"),
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_in_the_requirements_is_refused(
    tmp_path: Path, public: IndexServer, corp: IndexServer, elsewhere: Elsewhere, address: str
) -> None:
    wanted = elsewhere.fill(address)
    user = local_user(tmp_path, public, routes_to(corp.url), project(f'["corp-backend @ {wanted}"]'))
    error = refused(user.locks(), 4)
    assert error.startswith(f"own: its build requires corp-backend from {wanted}, but builds get")
    assert elsewhere.index.requests == [] and user.files() == {}


def test_a_login_in_such_an_address_is_not_told(tmp_path: Path, public: IndexServer) -> None:
    files = project(f'["corp-backend @ https://me:{SECRET}@files.example.invalid/a-1-py3-none-any.whl"]')
    ran = local_user(tmp_path, public, "", files).locks("--debug")
    assert ran.status == 4 and SECRET not in ran.stderr and "https://files.example.invalid/a-1" in ran.stderr


@pytest.mark.parametrize("address", [each for each in ADDRESSES if not each.startswith("file:")])
def test_an_address_that_a_backend_names_leads_nowhere(
    tmp_path: Path, public: IndexServer, corp: IndexServer, elsewhere: Elsewhere, address: str
) -> None:
    """A file of this machine is what its code could read as well: what keeps it from that is where it runs."""
    wanted = f"corp-backend @ {elsewhere.fill(address)}"
    files = {**ASKING, "own_backend.py": ASKING["own_backend.py"].replace(b"corp-backend", wanted.encode(), 1)}
    user = local_user(tmp_path, public, routes_to(corp.url), files)
    ran = user.locks()
    assert ran.status == 4 and ran.error.startswith("own: its build failed"), ran.stderr
    # Nobody has been called, neither by ssh, which knows no proxy.
    assert ("not allowed" in ran.stderr) == address.startswith("git+"), ran.stderr
    assert elsewhere.index.requests == [] and user.files() == {}


def test_an_address_that_a_requirement_names_leads_nowhere(
    tmp_path: Path, public: IndexServer, corp: IndexServer, elsewhere: Elsewhere
) -> None:
    public.add(ecosystem.release("tool", "1.0", requires=[f"corp-backend @ file://{elsewhere.wheel}"]))
    user = local_user(tmp_path, public, routes_to(corp.url), project('["tool"]'))
    assert refused(user.locks(), 4).startswith("own: its build failed")
    assert user.files() == {}


def test_a_lock_that_records_no_routes_builds_nothing(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    """Such as one that was changed by hand."""
    corp.add(ecosystem.release("corp-app", "1.0"))
    user = user_of(tmp_path, public, "own", routes_to(corp.url), pip='build.packages = ["own"]')
    user.wants("own", "corp-app", as_of=AS_OF, python=RUNNING, rest=routes_to(corp.url), pip='build.packages = ["own"]')
    assert user.locks().status == 0
    for name in ("archives", "built"):
        shutil.rmtree(user.cache / name)
    write_folder(user.lock, lock_files(replace(read_lock(user.lock), indexes=())))
    shown = refused(user.runs("install", user.lock, "--prefix", "env", "--python", BASE), 3)
    assert shown.startswith("own 1.0 can't be built: the lock of small does not record which packages index corp")
    assert public.requests_for("*corp-*") == []


def test_routes_are_part_of_an_order_and_not_of_an_image() -> None:
    """The key of an order without routes is that of before there were any: what was built stays good."""
    target = Target(Platform.LINUX_64, Python("3.11.7", "standalone"), glibc=(2, 28))

    async def lay_out(folder: Path, _: str) -> Path:
        return folder

    moment = datetime(2026, 6, 1, tzinfo=timezone.utc)
    order = BuildRequest("own", "1.0", target, moment, BuildSource("ab" * 32, lay_out))
    assert order.key("https://index.example/") == KEY_WITHOUT_ROUTES
    corp = NamedIndex("corp", "https://me:sesame@corp.example/simple", ("corp-*",))
    routed_order = replace(order, indexes=(corp,))
    keys = {
        order.key(""),
        routed_order.key(""),
        *(replace(order, indexes=(replace(corp, **change),)).key("") for change in CHANGES),
        replace(order, compilers=Compilers.LOCAL).key(""),
    }
    assert len(keys) == 3 + len(CHANGES)
    other_login = replace(corp, url="https://you@corp.example/simple")
    assert replace(order, indexes=(other_login,)).key("") == routed_order.key("")


KEY_WITHOUT_ROUTES: Final = "a0f96be42da7265afc2abf2751fd126578ed5523c22bd352bb3b37b983d90394"
CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "other"},
    {"url": "https://other.example/simple"},
    {"packages": ("corp-*", "x")},
    {"undated": True},
)


def test_an_index_that_redirects_a_build_elsewhere(tmp_path: Path, public: IndexServer, corp: IndexServer) -> None:
    corp.fail("/simple/corp-backend/", Status(308, {"Location": f"{public.url}corp-backend/"}))
    user = local_user(tmp_path, public, routes_to(corp.url))
    error = refused(user.locks(), 5)
    assert "/simple/corp-backend/: redirects to" in error and "a server of index corp" in error
    assert public.requests_for("*corp-*") == [] and user.files() == {}


def test_an_index_that_may_redirect_a_build_does_so_wherever_it_is_built(
    tmp_path: Path, public: IndexServer, corp: IndexServer
) -> None:
    """The lock records which servers the index has."""
    with IndexServer() as front:
        front.fail("/simple/*", Status(302, {"Location": f"{corp.url}corp-backend/"}))
        rest = routed("corp", front.url, "corp-*", files=[corp.root])
        user = user_of(tmp_path / "user", public, "own", rest, pip='build.packages = ["own"]')
        succeeded(user.locks())
        assert installed_elsewhere(user, tmp_path / "other", public) == "1.0"
    assert public.requests_for("*corp-*") == []
