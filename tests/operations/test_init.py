"""`envspec init` as its users run it: what is written, where it ends with which exit code, and that nothing moves."""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envspec import documents
from tests.operations.test_build_projects import PROJECT
from tests.support.builders import ecosystem
from tests.support.builders.adopted import write_project
from tests.support.builders.environments import RUNNING
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.builders.zips import record_digest
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused
from tests.support.waits import free_port


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    files = [*ecosystem.dated(), *ecosystem.requires_python(), *ecosystem.diamond(), *ecosystem.torch_family()]
    with IndexServer(files) as running:
        yield running


@pytest.fixture
def user(tmp_path: Path, index: IndexServer) -> User:
    return User(tmp_path, index.url)


def sources(user: User, **files: str) -> None:
    for name, text in files.items():
        path = user.folder / name.replace("__", "/").replace("_txt", ".txt").replace("_toml", ".toml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def init(user: User, *words: str) -> Ran:
    return user.runs("init", *words)


def answer(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def locked(user: User, name: str) -> dict[str, str]:
    document = documents.parse_toml((user.folder / "locks" / name / "envspec.lock").read_text())
    return {each["name"]: each["version"] for each in document["resolution"][0]["package"]}


def test_a_requirements_file_becomes_a_spec_and_a_lock(user: User) -> None:
    sources(user, requirements_txt="# the tools\nweekly==1.3.0\nmodern  # any\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--python", "3.11", "--gpu", "A100", "--format", "json")
    assert ran.status == 0, ran.stderr
    found = answer(ran)
    assert (found["spec"], found["lock"]) == ("specs/tools.toml", "locks/tools")
    assert found["counts"] == dict.fromkeys(found["counts"], 0) | {"kept": 2}
    assert [(each["file"], each["line"], each["text"]) for each in found["ledger"]] == [
        ("requirements.txt", 2, "weekly==1.3.0"),
        ("requirements.txt", 3, "modern"),
    ]
    assert locked(user, "tools") == {"weekly": "1.3.0", "modern": "2.0.0"}
    assert user.runs("lock", "specs/tools.toml", "--check").status == 0


def test_lost_lines_are_named_and_accepted_on_request(user: User) -> None:
    sources(user, requirements_txt="weekly\n--no-such-option\n")
    words = ("requirements.txt", "--name", "tools", "--python", "3.11")
    ran = init(user, *words)
    assert (ran.status, "not in the spec\n  requirements.txt:2: --no-such-option" in ran.stdout) == (10, True)
    assert "1 line of the sources is not in the spec" in ran.stderr
    assert "exists" in refused(init(user, *words), 2)
    assert init(user, *words, "--force", "--allow-incomplete").status == 0


def test_nothing_is_written_on_a_dry_run(user: User) -> None:
    sources(user, requirements_txt="weekly\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--dry-run")
    assert ran.status == 0
    assert 'dependencies = ["weekly"]' in ran.stderr
    assert sorted(each.name for each in user.folder.iterdir()) == ["home", "requirements.txt"]


def test_without_sources_the_folders_are_taken(user: User) -> None:
    assert "no requirements, pyproject.toml, lock" in refused(init(user), 2)
    sources(user, requirements_txt="weekly\n", requirements_rocm_txt="torch==2.9.1+rocm6.4\n")
    ran = init(user, "--name", "tools", "--no-lock")
    assert (ran.status, "importing requirements.txt\n" in ran.stderr) == (0, True)
    assert not (user.folder / "locks").exists()


def test_the_folder_of_a_project_stands_for_its_files(user: User) -> None:
    project = user.folder / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("weekly\n")
    ran = init(user, "project", "--name", "tools", "--no-lock")
    assert (ran.status, "importing project/requirements.txt" in ran.stderr) == (0, True)
    assert (user.folder / "specs" / "tools.toml").is_file()
    sources(user, requirements_txt="modern\n")
    ran = init(user, ".", "--name", "own", "--no-lock")
    assert (ran.status, "importing requirements.txt\n" in ran.stderr) == (0, True)


def test_a_spec_that_cannot_be_locked_is_written_all_the_same(user: User) -> None:
    sources(user, requirements_txt="weekly==9\n")
    ran = init(user, "requirements.txt", "--name", "tools", "--python", "3.11")
    assert ran.status in (2, 4)
    assert "weekly" in ran.error
    assert (user.folder / "specs" / "tools.toml").is_file()
    assert "specs/tools.toml" in ran.stdout


def test_a_spec_stays_as_it_is_if_no_index_is_reached(tmp_path: Path) -> None:
    user = User(tmp_path, f"http://127.0.0.1:{free_port()}/simple")
    sources(user, requirements_txt="weekly\n")
    words = ("requirements.txt", "--name", "tools", "--python", "3.11")
    assert init(user, *words, "--no-lock").status == 0
    spec = user.folder / "specs" / "tools.toml"
    before = spec.read_text()
    assert "\n# [cuda]\n" in before
    assert init(user, *words, "--force").status == 5
    assert re.sub("as_of = .*", "", spec.read_text()) == re.sub("as_of = .*", "", before)


@pytest.mark.parametrize(
    ("word", "message"),
    [("none.txt", "there is no none.txt"), ("empty", "in {folder}/empty"), ("a.docx", "no importer reads")],
)
def test_a_source_that_is_none_is_refused(user: User, word: str, message: str) -> None:
    (user.folder / "a.docx").write_text("")
    (user.folder / "empty").mkdir()
    error = refused(init(user, word), 2)
    assert message.format(folder=user.folder) in error
    assert "empty is not an environment" in refused(init(user, "--prefix", "empty"), 2)


@pytest.mark.parametrize("seed", range(8))
def test_a_generated_environment_moves_only_what_it_must(tmp_path: Path, seed: int) -> None:
    """Packages that require each other, in versions that are not the newest; some of them are gone from the index."""
    drawn = random.Random(seed)
    versions = {
        f"pkg{n}": sorted({f"{drawn.randint(1, 4)}.{drawn.randint(0, 9)}" for _ in range(4)}) for n in range(12)
    }
    installed = {name: drawn.choice(of_name) for name, of_name in versions.items()}
    requires = {
        name: [f"pkg{lower}>=1" for lower in drawn.sample(range(at), min(at, drawn.randint(0, 3)))]
        for at, name in enumerate(versions)
    }
    gone = set(drawn.sample(sorted(versions), drawn.randint(0, 3)))
    files, wheels = [], []
    for name, of_name in versions.items():
        for version in of_name:
            made = wheel(name, version, requires=requires[name])
            wheels += [made] if version == installed[name] else []
            if name not in gone or version != installed[name]:
                files.append(File(made))
        # Something of it has to be there.
        files.append(File(wheel(name, "9.0", requires=requires[name])))
    by_pip = drawn.random() < 0.5
    requested = set(drawn.sample(sorted(versions), 3)) if by_pip else set[str]()
    prefix = environment(tmp_path / "env", wheels, "pip" if by_pip else "uv", requested)
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        ran = init(user, "--prefix", "env", "--name", "mine", "--allow-incomplete", "--format", "json")
    assert ran.status == 0, ran.stderr
    found = answer(ran)
    lock, moved = locked(user, "mine"), {each["name"]: each for each in found["moved"]}
    # What nothing requires and nobody requested is required by the spec.
    assert lock.keys() == installed.keys()
    for name, version in installed.items():
        if name in gone:
            assert (lock[name] != version, moved[name]["why"]) == (True, "index default does not have it")
        else:
            assert (lock[name], name in moved) == (version, False)
    [proof] = found["proofs"]
    assert {each["package"] for each in proof["findings"]} == set(moved)
    assert prefix.is_dir()


def environment(prefix: Path, wheels: list[Artifact], installer: str, requested: set[str]) -> Path:
    """A venv with these wheels, as an installer leaves it: pip marks what its user named."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    for each in wheels:
        with zipfile.ZipFile(io.BytesIO(each.data)) as archive:
            archive.extractall(site)
        [info] = site.glob(f"{each.name.replace('-', '_')}-{each.version}.dist-info")
        marks = {"INSTALLER": f"{installer}\n", **({"REQUESTED": ""} if each.name in requested else {})}
        lines = [f"{info.name}/{mark},{record_digest(text.encode())},{len(text)}" for mark, text in marks.items()]
        for mark, text in marks.items():
            (info / mark).write_text(text)
        with (info / "RECORD").open("a") as record:
            record.write("".join(f"{line}\n" for line in lines))
    return prefix


def test_extras_are_those_of_the_project_that_a_dockerfile_installs(user: User) -> None:
    sources(
        user,
        pyproject_toml='[project]\nname = "a"\ndependencies = ["weekly"]\noptional-dependencies.more = ["modern"]\n',
        Dockerfile="FROM ubuntu:24.04\nCOPY . .\nRUN uv sync --no-dev\n",
    )
    ran = init(user, "Dockerfile", "--name", "tools", "--extra", "more", "--no-lock", "--allow-incomplete")
    assert ran.status == 0, ran.stderr
    assert '"weekly", "modern"' in (user.folder / "specs" / "tools.toml").read_text()
    sources(user, requirements_txt="weekly\n")
    assert "--extra more: no source" in refused(init(user, "requirements.txt", "--extra", "more", "--no-lock"), 2)


@confined
def test_a_project_has_the_name_of_its_wheel(tmp_path: Path) -> None:
    with IndexServer([ecosystem.release("lib", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        for name, content in PROJECT.items():
            path = user.folder / "mine" / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        sources(user, requirements_txt="./mine\n")
        ran = init(user, "requirements.txt", "--name", "tools", "--python", RUNNING)
    assert ran.status == 0, ran.stderr
    assert 'dependencies = ["own @ ../mine"]' in (user.folder / "specs" / "tools.toml").read_text()
    assert "pip.dependencies = own\n      the name of mine, by its wheel" in ran.stdout
    assert locked(user, "tools") == {"own": "1.0", "lib": "1.0.0"}


def test_sources_without_a_package(user: User) -> None:
    sources(user, pyproject_toml="[tool.ruff]\nline-length = 100\n")
    ran = init(user, "pyproject.toml", "--name", "tools", "--no-lock")
    assert (ran.status, "no package was found: add what the project needs" in ran.stdout) == (10, True)
    sources(user, requirements_txt="weekly\n")
    (user.folder / "setup.py").write_text(
        "from setuptools import setup\nNEEDS = ['weekly', 'modern']\nsetup(name='studio', install_requires=NEEDS)\n"
    )
    ran = init(user, "pyproject.toml", "--name", "tools", "--no-lock", "--force")
    assert ran.status == 10
    words = " ".join(ran.stdout.split())
    assert 'setup.py has install_requires (weekly, modern): write "studio @ .." in [pip] dependencies' in words
    assert "requirements.txt is not among the sources" in words
    (user.folder / "setup.py").unlink()
    (user.folder / "setup.cfg").write_text(
        "[metadata]\nname = cfg\n[options]\ninstall_requires =\n  weekly\n  modern\n"
    )
    ran = init(user, "pyproject.toml", "--name", "tools", "--no-lock", "--force")
    words = " ".join(ran.stdout.split())
    assert 'setup.cfg has install_requires (weekly, modern): write "cfg @ .." in [pip] dependencies' in words
    assert init(user, "requirements.txt", "--name", "tools", "--no-lock", "--force").status == 0


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        ("if [ -f /x ]; then\npip install modern\nfi", "a branch"),
        ("for name in modern; do\npip install $name\ndone", "a loop"),
        ("cat > /s.sh <<'SCRIPT'\npip install modern\nSCRIPT", "a here-document"),
    ],
)
def test_an_install_command_that_may_not_run_is_listed(lines: str, where: str, user: User) -> None:
    text = "FROM ubuntu:24.04\nRUN pip install weekly\n"
    script = f"set -e\n{lines}\n"
    (user.folder / "install.sh").write_text(script)
    (user.folder / "Dockerfile").write_text(f"{text}RUN <<END\n{script}END\n")
    (user.folder / "Dockerfile.script").write_text(f"{text}COPY install.sh /s/\nRUN bash /s/install.sh\n")
    for file, place in (("Dockerfile", "Dockerfile:6"), ("Dockerfile.script", "install.sh:3")):
        ran = init(user, file, "--name", "t", "--no-lock", "--force")
        assert ran.status == 10
        assert "1 not decided" in ran.stdout
        assert re.search(rf"{place}: pip install \S+\n +not decided: it is in {where}", ran.stdout)
        assert init(user, file, "--name", "t", "--no-lock", "--force", "--allow-incomplete").status == 0


def test_a_file_of_another_name_is_read_as_what_it_is(user: User) -> None:
    (user.folder / "requirements.dev").write_text("weekly\n")
    (user.folder / "Gpu_Dockerfile").write_text(
        "FROM ubuntu:24.04 AS a\nRUN pip install modern\nFROM ubuntu:24.04 AS b\nRUN pip install weekly\n"
    )
    spec = user.folder / "specs" / "t.toml"
    words = ("--name", "t", "--no-lock", "--force")
    assert "with `envspec init --as`" in refused(init(user, "requirements.dev", *words), 2)
    for name, more, line in (
        ("requirements.dev", ("--as", "requirements"), '["weekly"]'),
        ("Gpu_Dockerfile", (), '["weekly"]'),
        ("Gpu_Dockerfile", ("--target", "a"), '["modern"]'),
    ):
        assert init(user, name, *more, *words).status == 0
        assert f"dependencies = {line}" in spec.read_text()
    assert "its stages: a, b" in refused(init(user, "Gpu_Dockerfile", "--target", "c", *words), 2)


def test_an_extra_that_a_package_does_not_have_is_left_out(tmp_path: Path) -> None:
    files = [ecosystem.release("lib", "1.0.0", requires=["app; extra == 'more'"]), ecosystem.release("app", "1.0.0")]
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        sources(user, requirements_txt="lib[more,gone]>=1\napp\n")
        ran = init(user, "requirements.txt", "--name", "tools", "--python", "3.11")
        assert ran.status == 0, ran.stderr
        assert 'dependencies = ["lib[more]>=1", "app"]' in (user.folder / "specs" / "tools.toml").read_text()
        assert "requirements.txt:1: lib[more,gone]>=1\n      without [gone]: lib has no such extra" in ran.stdout
        lock = documents.parse_toml((user.folder / "locks" / "tools" / "envspec.lock").read_text())
        assert not [text for text in lock["resolution"][0].get("warnings", []) if "extra" in text]


def test_a_gpu_of_the_user_counts_more_than_a_build_for_the_cpu(user: User) -> None:
    sources(user, requirements_txt="torch==2.9.1+cpu\n")
    ran = init(user, "requirements.txt", "--name", "train", "--gpu", "A100", "--no-lock")
    assert ran.status == 0, ran.stderr
    spec = documents.parse_toml((user.folder / "specs" / "train.toml").read_text())
    assert spec["cuda"] == {"gpus": ["A100"]}


def test_a_gpu_that_is_unknown_is_refused_before_anything_is_written(user: User) -> None:
    sources(user, requirements_txt="weekly\n")
    message = refused(init(user, "requirements.txt", "--name", "train", "--gpu", "A1OO", "--no-lock"), 2)
    assert "A1OO" in message
    assert not (user.folder / "specs").exists()


LOCKED_PROJECT = """
dependencies = ["b"]
optional-dependencies.more = ["c"]

[dependency-groups]
dev = ["c"]

[tool.uv]
constraint-dependencies = ["b<9"]
"""


@pytest.fixture
def locking(tmp_path: Path) -> Iterator[User]:
    """A user with a project, and with a lock of it by uv, in `app`."""
    files = [ecosystem.release("a", "1"), ecosystem.release("b", "2", requires=["a"]), ecosystem.release("c", "3")]
    with IndexServer(files) as index:
        user = User(tmp_path, index.url)
        write_project(user.folder / "app", LOCKED_PROJECT, index)
        yield user


def test_a_locked_project_is_named_by_its_lock(locking: User) -> None:
    ran = init(locking, "app", "--name", "tools", "--extra", "more", "--python", "3.11")
    assert ran.status == 0, ran.stderr
    text = (locking.folder / "specs" / "tools.toml").read_text()
    assert '[pip]\nfrom = "../app/uv.lock"\nextras = ["more"]\n' in text
    assert not [key for key in ("dependencies =", "prefer", "constraints", "as_of") if key in text]
    assert locked(locking, "tools") == {"a": "1", "b": "2", "c": "3"}
    assert "app/uv.lock:1: app/uv.lock\n      [pip] from: 3 packages" in ran.stdout
    assert "b (and 3 more lines)\n      app/uv.lock has it" in ran.stdout
    assert locking.runs("lock", "specs/tools.toml", "--check").status == 0


def test_a_lock_and_what_a_dockerfile_adds_to_it(locking: User) -> None:
    lines = "COPY . .\nRUN uv sync --no-default-groups --extra more\nRUN uv pip install d\nCMD uv run b\n"
    (locking.folder / "app" / "Dockerfile").write_text(f"FROM python:3.11\n{lines}")
    ran = init(locking, "app/Dockerfile", "--name", "tools")
    assert ran.status == 10, ran.stderr
    assert "uv.lock has all packages of the spec: add it to the project, and lock it there" in ran.stdout
    text = (locking.folder / "specs" / "tools.toml").read_text()
    assert 'extras = ["more"]\n' in text and 'command = ["/bin/sh", "-c", "b"]' in text
    assert locked(locking, "tools") == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--extra", "gone"), "has no extra gone"),
        (("--as-of", "2026-01-01"), "uv.lock decides the versions, so `--as-of` has no effect"),
    ],
)
def test_what_a_lock_cannot_give(locking: User, words: tuple[str, ...], message: str) -> None:
    assert message in refused(init(locking, "app/uv.lock", "--name", "tools", *words), 2)
    assert not (locking.folder / "specs").exists()
