"""git and local projects, and sdists by URL: locked by the wheels that are built of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from envspec.verifier.record import wheel_sha256
from tests.operations.test_build_sdists import serving, with_files
from tests.support.builders import ecosystem
from tests.support.builders.environments import BASE, RUNNING, run_in
from tests.support.builders.images import ImageUser, keep_base, make_base
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import sdist, wheel
from tests.support.builders.zips import member
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import refused, succeeded

pytestmark = [confined, pytest.mark.skipif(shutil.which("git") is None, reason="there is no git on this machine")]

AS_OF = "2026-06-01T00:00:00Z"
#: A project with a backend of its own: its version is what `VERSION` says.
PROJECT = {
    "pyproject.toml": b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "VERSION": b"1.0",
    "own.py": b"ANSWER = 1\n",
    "backend.py": b"""
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version = Path("VERSION").read_text().strip()
    info = f"own-{version}.dist-info"
    content = {
        "own.py": Path("own.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: own\\nVersion: {version}\\nRequires-Dist: lib>=1\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: backend\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD"))
    name = f"own-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return name
""",
}


@pytest.fixture
def index() -> Iterator[IndexServer]:
    with IndexServer([ecosystem.release("lib", "1.0.0"), ecosystem.release("app", "1.0.0", requires=["own"])]) as found:
        yield found


class Repository:
    """A git repository in a folder."""

    def __init__(self, folder: Path, files: Mapping[str, bytes] = PROJECT) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit(files)

    def git(self, *words: str) -> str:
        who = [word for role in ("AUTHOR", "COMMITTER") for word in (f"GIT_{role}_NAME", f"GIT_{role}_EMAIL")]
        environ = {**os.environ, **dict.fromkeys(who, "a@example.org"), "GIT_CONFIG_GLOBAL": "/dev/null"}
        return subprocess.run(
            ["git", *words], cwd=self.folder, env=environ, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, files: Mapping[str, bytes]) -> str:
        write(self.folder, files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "work")
        return self.git("rev-parse", "HEAD")

    @property
    def url(self) -> str:
        return f"git+file://{self.folder}"


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def user_of(folder: Path, index: IndexServer, *names: str, pip: str = "") -> ImageUser:
    base = make_base()
    user = ImageUser(folder, index.url)
    keep_base(user.cache, base)
    user.wants(
        *names,
        as_of=AS_OF,
        python=RUNNING,
        pip=pip,
        rest=f'[image]\nbase = "docker.io/nvidia/cuda:1@{base.digest}"\nglibc = "2.36"\npython = "{RUNNING}"\n',
    )
    return user


def locked(user: ImageUser, *words: str, **environ: str) -> dict[str, Any]:
    user.locked(*words, **environ)
    return user.packages()["own"]


def test_a_branch_is_locked_by_its_commit_and_its_wheel(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git")
    commit = repository.git("rev-parse", "HEAD")
    user = user_of(tmp_path / "user", index, f"own @ {repository.url}@main", "app")
    row = locked(user)
    assert row["file"] == {"index": "git", "url": f"{repository.url}@{commit}", **row["built"]}
    assert user.pins() == {"own": "1.0", "lib": "1.0.0", "app": "1.0.0"}
    assert {"name": "own", "requirement": "lib>=1"} in user.packages()["lib"]["required_by"]
    assert user.document()["commit"] == [
        {
            "name": "own",
            "requirement": f"own @ {repository.url}@main",
            "address": f"{repository.url}@{commit}",
            "ref": "main",
        }
    ]
    assert user.locks("--check").status == 0


@pytest.mark.parametrize("words", [("--upgrade",), ("--upgrade-package", "own")])
def test_a_branch_moves_by_an_upgrade_only(tmp_path: Path, index: IndexServer, words: tuple[str, ...]) -> None:
    repository = Repository(tmp_path / "repo.git")
    user = ImageUser(tmp_path / "user", index.url)
    user.wants(f"own @ {repository.url}", python=RUNNING)
    first = locked(user)
    repository.commit({"own.py": b"ANSWER = 2\n", "VERSION": b"2.0"})
    user.wants("app", f"own @ {repository.url}", python=RUNNING)
    again = locked(user)
    assert (again["version"], again["file"]) == (first["version"], first["file"])
    assert locked(user, *words)["version"] == "2.0"


def test_pip_tools_locks_the_same(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git")
    rows = []
    for name, words in (("uv", ()), ("pip-tools", ("--resolver", "pip-tools"))):
        user = user_of(tmp_path / name, index, f"own @ {repository.url}@main", "app")
        locked(user, *words)
        rows.append(user.packages())
    assert rows[0] == rows[1]


@pytest.mark.parametrize("ref", ["v1", "annotated", "main", "COMMIT", ""])
def test_tags_branches_and_commits_of_a_subdirectory(tmp_path: Path, index: IndexServer, ref: str) -> None:
    repository = Repository(tmp_path / "repo.git", {f"py/own/{name}": body for name, body in PROJECT.items()})
    first = repository.git("rev-parse", "HEAD")
    repository.git("tag", "v1")
    repository.git("tag", "--annotate", "--message", "x", "annotated")
    if ref not in {"main", ""}:
        repository.commit({"py/own/VERSION": b"2.0"})
    at = f"@{ref.replace('COMMIT', first)}" if ref else ""
    row = locked(user_of(tmp_path / "user", index, f"own @ {repository.url}{at}#subdirectory=py/own"))
    assert row["version"] == "1.0"
    assert row["file"]["url"].endswith(f"@{first}#subdirectory=py/own")


def test_over_http_and_a_login_is_never_written(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "www" / "team" / "repo")
    shutil.copytree(repository.folder / ".git", tmp_path / "www" / "repo.git")
    subprocess.run(["git", "update-server-info"], cwd=tmp_path / "www" / "repo.git", check=True)
    with serving(tmp_path / "www") as url:
        address = url.replace("http://", "http://me:sesame@")
        user = user_of(tmp_path / "user", index, f"own @ git+{address}repo.git@main")
        row = locked(user, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")
        commit = repository.git("rev-parse", "HEAD")
        assert row["file"]["url"] == f"git+{url}repo.git@{commit}"
        shutil.rmtree(user.cache / "archives")
        shutil.rmtree(user.cache / "built")
        assert user.image("build", user.lock, NO_PROXY="127.0.0.1", no_proxy="127.0.0.1").status == 0
    assert b"sesame" not in b"".join(user.files().values())
    for path in user.cache.rglob("*"):
        assert not path.is_file() or b"sesame" not in path.read_bytes(), path


def test_install_and_image_take_the_wheel(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git")
    user = user_of(tmp_path / "user", index, f"own @ {repository.url}@main")
    locked(user, "--image")
    shutil.rmtree(repository.folder)
    ran = user.runs("install", user.lock, "--prefix", "env", "--python", BASE)
    assert ran.status == 0, ran.stderr
    assert run_in(user.folder / "env", "python", "-c", "import own; print(own.ANSWER)") == "1"
    ran = user.runs("verify", user.lock, "--prefix", "env")
    assert (ran.status, "not anchored" in ran.stdout) == (0, False), ran
    assert user.id_of(user.lock) == user.document()["image_id"][0]["id"]


def test_the_requirements_name_the_wheel_and_where_it_is(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git")
    user = user_of(tmp_path / "user", index, f"own @ {repository.url}@main")
    row = locked(user)
    text = (user.lock / "requirements.linux-64.txt").read_text()
    built = row["built"]
    assert f"own==1.0 \\\n    --hash=sha256:{built['sha256']}" in text
    assert f"# {built['filename']}, built from {repository.url}@" in text
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
    pip += ["--target", str(tmp_path / "t")]
    found = user.cache / "archives" / str(built["sha256"])
    words = ["--find-links", str(found), "--index-url", index.url, "-r", str(user.lock / "requirements.linux-64.txt")]
    subprocess.run([*pip, *words], check=True, env={"PATH": os.defpath, "PIP_CONFIG_FILE": "/dev/null"})
    assert (tmp_path / "t" / "own.py").read_bytes() == PROJECT["own.py"]
    exported = succeeded(user.runs("export", user.lock, "--format", "dockerfile")).stdout
    assert f"ADD ${{BUILT_WHEELS}}/{built['sha256']}/{built['filename']} /tmp/envspec/wheels/" in exported


def test_a_local_project_and_what_changes_it(tmp_path: Path, index: IndexServer) -> None:
    user = user_of(tmp_path, index, "own @ ./own")
    project = write(tmp_path / "own", PROJECT)
    row = locked(user)
    assert row["file"]["index"] == "local"
    assert row["file"]["url"].startswith("./own#sha256=")
    write(project, {"__pycache__/own.pyc": b"x", ".git/HEAD": b"x", "build/lib/own.py": b"x"})
    before = user.files()
    assert user.locks("--check").status == 0
    assert user.locks().status == 0 and user.files() == before
    write(project, {"own.py": b"ANSWER = 2\n"})
    ran = user.locks("--check")
    assert ran.status == 3 and "own" in ran.stderr and "./own" in ran.stderr, ran.stderr
    changed = locked(user)
    assert changed["built"] != row["built"]
    assert user.locks("--check").status == 0


def test_a_local_project_counts_in_every_run(tmp_path: Path, index: IndexServer) -> None:
    """A run in a Python of its own can end before it reads anything but the files of the spec and the lock."""
    user = user_of(tmp_path, index, "own @ ./own")
    project = write(tmp_path / "own", PROJECT)
    before = locked(user)
    for _ in range(2):
        assert "nothing changed" in succeeded(user.runs_anew("lock", user.spec.name)).stderr
    write(project, {"own.py": b"ANSWER = 2\n"})
    assert "envspec.lock" in succeeded(user.runs_anew("lock", user.spec.name)).stdout
    assert locked(user)["built"] != before["built"]


def test_elsewhere_a_local_project_is_its_recorded_wheel(tmp_path: Path, index: IndexServer) -> None:
    first = user_of(tmp_path / "a", index, "own @ ../own")
    write(tmp_path / "own", PROJECT)
    locked(first)
    second = user_of(tmp_path / "b", index, "own @ ../own")
    shutil.copytree(first.lock, second.lock)
    shutil.rmtree(tmp_path / "own")
    error = refused(second.image("build", second.lock), 5)
    assert "../own" in error and "ENVSPEC_BUILT_WHEELS" in error
    second.id_of(second.lock, ENVSPEC_BUILT_WHEELS=str(first.cache / "archives"))


@pytest.mark.parametrize("form", ["file://{}", "{}"])
def test_a_local_wheel_and_a_local_sdist(tmp_path: Path, index: IndexServer, form: str) -> None:
    made = wheel("own", "3.0", requires=["lib"])
    (tmp_path / made.filename).write_bytes(made.data)
    user = user_of(tmp_path / "user", index, f"own @ {form.format(tmp_path / made.filename)}")
    row = locked(user)
    assert row["version"] == "3.0" and row["built"]["sha256"] == made.sha256
    assert row["record_sha256"] == wheel_sha256(member(made.data, ".dist-info/RECORD"))
    source = sdist("own", "4.0")
    (tmp_path / source.filename).write_bytes(source.data)
    user = user_of(tmp_path / "other", index, f"own @ {form.format(tmp_path / source.filename)}")
    assert locked(user)["version"] == "4.0"


def test_an_sdist_by_url(tmp_path: Path, index: IndexServer) -> None:
    source = sdist("own", "1.5", requires=["lib"])
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / source.filename).write_bytes(source.data)
    with serving(tmp_path / "www") as url:
        user = user_of(tmp_path / "user", index, f"own @ {url}{source.filename}#sha256={source.sha256}")
        row = locked(user, "--image")
        assert row["file"] == {
            "index": "url",
            "filename": source.filename,
            "size_bytes": source.size_bytes,
            "sha256": source.sha256,
            "url": f"{url}{source.filename}",
        }
        text = (user.lock / "requirements.linux-64.txt").read_text()
        assert f"own @ {url}{source.filename} \\\n    --hash=sha256:{source.sha256}" in text
        expected = user.document()["image_id"][0]["id"]
        for name in ("archives", "built", "image-layers"):
            shutil.rmtree(user.cache / name)
        assert user.id_of(user.lock) == expected
        wrong = user_of(tmp_path / "wrong", index, f"own @ {url}{source.filename}#sha256={'ab' * 32}")
        assert "correct the spec if the file is right" in refused(wrong.locks(), 5)


@pytest.mark.parametrize("fragment", ["", "#sha256={}"])
@pytest.mark.parametrize("keeps_bytes", [0, 200])
def test_what_came_once_in_place_of_an_sdist_is_not_kept(
    tmp_path: Path, index: IndexServer, fragment: str, keeps_bytes: int
) -> None:
    source = sdist("own", "1.5")
    (tmp_path / "www").mkdir()
    file = tmp_path / "www" / source.filename
    with serving(tmp_path / "www") as url:
        user = user_of(tmp_path / "user", index, f"own @ {url}{source.filename}{fragment.format(source.sha256)}")
        file.write_bytes(source.data[:keeps_bytes] or b"<html><body>Log in</body></html>")
        assert f"{url}{source.filename}" in refused(user.locks(), 5)
        file.write_bytes(source.data)
        assert locked(user)["version"] == "1.5"


def test_what_a_build_reads_of_an_index_is_remembered(tmp_path: Path, index: IndexServer) -> None:
    """Each build after the first, and that of a fetched sdist, waited 20 s for the lock's memory, and kept nothing."""
    index.add(ecosystem.release("tool", "1.0"))
    project = PROJECT["pyproject.toml"].replace(b"[]", b'["tool"]', 1)
    source = with_files(sdist("own", "1.0"), {**PROJECT, "pyproject.toml": project})
    index.add(File(source, day("2024-01-01")))
    user = user_of(tmp_path, index, f"own @ {index.file_url(source.filename)}")
    locked(user)
    for name in (user.cache / "built", user.cache / "engines", user.lock):
        shutil.rmtree(name)
    index.forget()
    # Another spec: the lock of the same one is remembered whole.
    locked(user_of(tmp_path, index, f"own @ {index.file_url(source.filename)}", "lib"))
    assert index.requests_for("/files/tool/*") and not index.requests_for("/simple/tool/*")


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("own @ {}@gone", 5, "has no branch or tag 'gone'"),
        ("own @ {}@" + "ab" * 20, 5, f"commit {'ab' * 20} is on no branch or tag"),
        ("own @ {}-gone@main", 5, "git can't read"),
        ("own @ {}#subdirectory=nowhere", 5, "has no folder nowhere"),
        ("other @ {}", 4, "a wheel of own 1.0, not of other"),
        ("own @ ./nowhere", 2, "nowhere does not exist"),
        ("own @ .", 2, "neither pyproject.toml nor setup.py"),
    ],
)
def test_what_is_not_there_is_said(tmp_path: Path, index: IndexServer, name: str, status: int, words: str) -> None:
    repository = Repository(tmp_path / "repo.git")
    user = user_of(tmp_path / "user", index, name.format(repository.url))
    assert words in refused(user.locks(), status)
    assert user.files() == {}


def test_offline_is_enough_where_all_is_in_the_cache(tmp_path: Path, index: IndexServer) -> None:
    repository = Repository(tmp_path / "repo.git")
    user = user_of(tmp_path / "user", index, f"own @ {repository.url}@main")
    assert "commit" in refused(user.locks("--offline"), 5)
    locked(user)
    before = user.files()
    (user.lock / "requirements.linux-64.txt").unlink()
    locked(user, "--offline")
    assert user.files() == before


def test_the_build_of_a_commit_that_is_not_the_same_elsewhere_is_refused(tmp_path: Path, index: IndexServer) -> None:
    """A backend that never gives the same twice."""
    body = PROJECT["backend.py"].replace(
        b'Path("own.py").read_text()', b'"AT = %r\\n" % __import__("uuid").uuid4().hex'
    )
    repository = Repository(tmp_path / "repo.git", {**PROJECT, "backend.py": body})
    user = user_of(tmp_path / "user", index, f"own @ {repository.url}@main")
    row = locked(user)
    shutil.rmtree(user.cache / "archives")
    shutil.rmtree(user.cache / "built")
    error = refused(user.image("build", user.lock), 8)
    assert str(row["built"]["sha256"]) in error
    assert "ENVSPEC_BUILT_WHEELS" in error
