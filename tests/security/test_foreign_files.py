"""Files of someone else: of a repository, a lock, a cluster. What is no file, or has no end, is refused at once; a link
out of the repository is not followed, and a login does not get into a spec.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from envspec.operations.fleet import write_suite_file
from envspec.receipts.model import dump
from tests.support import preloaded
from tests.support.builders import receipts
from tests.support.builders.ecosystem import release
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused

pytestmark = pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="pipes, /dev/zero and /proc as on Linux")

NOBODY: Final = "http://127.0.0.1:9/simple/"
#: Of a run, in bytes of address space: a reader without a limit fails instead of taking the machine's memory.
_MEMORY: Final = 4 << 30


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300 << 20)


#: What is at the path of a file -> what makes it.
KINDS: Final[dict[str, Callable[[Path], object]]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "300 MB": large,
}


def bounded(user: User, *words: str, **environ: str) -> Ran:
    """A run with little memory, and a minute at most."""
    running = user.in_background(words, {**user.environ, **environ})
    # On a busy machine, it may have ended before.
    with suppress(ProcessLookupError):
        resource.prlimit(running.child.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    return running.ends(limit_s=60)


def a_receipt(user: User) -> str:
    (user.folder / "good.json").write_text(dump(receipts.made(receipts.check("lock"))))
    return "receipt.json"


def a_list(user: User) -> str:
    user.wants("app", as_of="2026-01-01T00:00:00Z", pip='on_top_of = "system.txt"')
    return "system.txt"


def a_project(user: User) -> str:
    (user.folder / "project").mkdir()
    (user.folder / "project" / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "1"\n')
    user.wants("own @ ./project", as_of="2026-01-01T00:00:00Z")
    return "project/data"


def a_hint(user: User) -> str:
    user.wants("-r more.txt")
    return "more.txt"


def the_settings(user: User) -> str:
    (user.home / ".config" / "envspec").mkdir(parents=True)
    return "home/.config/envspec/config.toml"


#: Words of a command -> what prepares it and returns the path of the file that the command reads, the exit status.
READERS: Final[dict[str, tuple[Callable[[User], str], int]]] = {
    "init requirements.txt --no-lock": (lambda user: "requirements.txt", 2),
    "audit-project requirements.txt --offline": (lambda user: "requirements.txt", 2),
    "lock spec.toml": (a_list, 2),
    "lock --offline spec.toml": (a_project, 2),
    "lock spec.toml --offline": (a_hint, 2),
    "receipts good.json receipt.json": (a_receipt, 2),
    "config": (the_settings, 2),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", READERS)
def test_what_is_no_file_or_too_large_is_refused(words: str, kind: str, tmp_path: Path) -> None:
    prepare, status = READERS[words]
    if prepare is a_project and kind != "a pipe":
        pytest.skip("a project may have folders, links and large files")
    user = User(tmp_path, NOBODY)
    path = prepare(user)
    KINDS[kind](user.folder / path)
    message = refused(bounded(user, *words.split()), status)
    assert Path(path).name in message


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_lock(kind: str, tmp_path: Path) -> None:
    with IndexServer([release("app", "1.0.0")]) as index:
        user = User(tmp_path, index.url)
        user.wants("app", as_of="2026-01-01T00:00:00Z")
        user.locked()
    path = user.lock / "requirements.linux-64.txt"
    path.unlink()
    KINDS[kind](path)
    ran = bounded(user, "lock", "--check", "spec.toml")
    assert ran.status == 3, ran
    assert path.name in ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["receipt.json", "../fleet.json"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_receipt_that_a_scheduler_reads_as_root(kind: str, name: str, tmp_path: Path) -> None:
    suite = write_suite_file(tmp_path / "suite.pyz")
    node = tmp_path / "receipts" / "node1"
    node.mkdir(parents=True)
    if name != "receipt.json":
        (node / "receipt.json").write_text(dump(receipts.made(receipts.check("lock"))))
    KINDS[kind](node / name)
    done = subprocess.run(
        [sys.executable, str(suite), "--node-receipt", str(node)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr and "MemoryError" not in done.stdout, done
    assert done.returncode in (0, 3), done
    if name == "receipt.json":
        assert done.returncode == 3 and "receipt" in done.stdout


# ------------------------------------------------------------ links of a repository


SECRET: Final = "hunter2"


def project(tmp_path: Path) -> User:
    """A repository in a folder that has other things, too."""
    (tmp_path / "outside").write_text(f"password={SECRET}\n")
    user = User(tmp_path / "clone", NOBODY, OF_THE_JOB=SECRET)
    (user.folder / ".git").mkdir()
    return user


@pytest.mark.parametrize("target", ["/proc/self/environ", "../outside", "/etc/passwd", "more/../../outside"])
@pytest.mark.parametrize("words", ["audit-project . --offline", "init --no-lock ."])
@pytest.mark.parametrize("source", ["requirements.txt", "pyproject.toml", ".devcontainer/devcontainer.json"])
def test_a_source_that_leads_out_is_refused(source: str, words: str, target: str, tmp_path: Path) -> None:
    user = project(tmp_path)
    path = user.folder / source
    path.parent.mkdir(exist_ok=True)
    (path.parent / "more").mkdir()
    path.symlink_to(target if path.parent == user.folder else target.replace("../outside", "../../outside"))
    ran = user.runs(*words.split())
    assert SECRET not in ran.stdout + ran.stderr and "root:" not in ran.stdout + ran.stderr
    assert "outside of the project" in refused(ran, 2)


def test_a_folder_that_leads_out_is_refused(tmp_path: Path) -> None:
    user = project(tmp_path)
    (tmp_path / "other" / ".git").mkdir(parents=True)
    (tmp_path / "other" / "devcontainer.json").write_text(f'{{"name": "{SECRET}"}}')
    (user.folder / ".devcontainer").symlink_to(tmp_path / "other")
    ran = user.runs("audit-project", ".", "--offline")
    assert "outside of the project" in refused(ran, 2)
    assert SECRET not in ran.stderr


def test_an_included_file_that_leads_out_is_a_line_of_the_report(tmp_path: Path) -> None:
    user = project(tmp_path)
    (user.folder / "requirements.txt").write_text("-r more.txt\n")
    (user.folder / "more.txt").symlink_to("../outside")
    ran = user.runs("init", "requirements.txt", "--no-lock", "--dry-run")
    assert ran.status == 10
    assert "more.txt is a link to a file outside of the project" in ran.stdout
    assert SECRET not in ran.stdout + ran.stderr


@pytest.mark.parametrize("is_repository", [True, False])
def test_links_within_a_project_are_followed(is_repository: bool, tmp_path: Path) -> None:
    user = User(tmp_path / "clone", NOBODY)
    if is_repository:
        (user.folder / ".git").mkdir()
        (user.folder / "train").mkdir()
    folder = user.folder / "train" if is_repository else user.folder
    (user.folder / "common.txt").write_text("six\n")
    (folder / "requirements.txt").symlink_to("../common.txt" if is_repository else "common.txt")
    # The folder itself may be a link, as /tmp is on macOS.
    (tmp_path / "link").symlink_to(folder)
    for named in (folder, tmp_path / "link"):
        ran = user.runs("init", str(named / "requirements.txt"), "--no-lock", "--dry-run")
        assert ran.status == 0, ran
        assert '"six"' in ran.stderr


# ------------------------------------------------------------ logins

#: A source -> its text, with a token as a user without a password.
TOKENS: Final = {
    "requirements.txt": """
a @ git+https://hunter2@github.com/a/a
git+https://hunter2@github.com/a/b
-e git+https://hunter2@github.com/a/c#egg=c
d @ https://hunter2@h.example/d-1.0-py3-none-any.whl
--extra-index-url https://hunter2@h.example/simple
--find-links https://hunter2@h.example/links
-r https://hunter2@h.example/more.txt
""",
    "environment.yml": """
name: x
channels: [https://hunter2@conda.example/c, conda-forge]
dependencies:
- https://hunter2@conda.example/x.conda
- https://hunter2@conda.example/c::zlib
- pip
- pip: [git+https://hunter2@github.com/a/b, --index-url https://hunter2@h.example/simple]
""",
    "Dockerfile": """
FROM python:3.12
ENV PIP_EXTRA_INDEX_URL=https://hunter2@h.example/simple OTHER=https://hunter2@h.example/
RUN pip install git+https://hunter2@github.com/a/b
RUN git clone https://hunter2@github.com/a/c && cd c && pip install .
RUN curl https://hunter2@h.example/x | sh
""",
    "pixi.toml": """
[project]
name = "x"
channels = ["https://hunter2@conda.example/c"]
platforms = ["linux-64"]
[pypi-options]
extra-index-urls = ["https://hunter2@h.example/simple"]
[pypi-dependencies]
b = { git = "https://hunter2@github.com/a/b" }
""",
    "cog.yaml": """
build:
  python_packages: ["b @ git+https://hunter2@github.com/a/b"]
  run: ["pip install git+https://hunter2@github.com/a/b", "git clone https://hunter2@github.com/a/c"]
""",
    "pyproject.toml": """
[project]
name = "p"
version = "1"
dependencies = ["a @ git+https://hunter2@github.com/a/a", "b"]
[tool.uv.sources]
b = { git = "https://hunter2@github.com/a/b" }
[[tool.uv.index]]
url = "https://hunter2@h.example/simple"
""",
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_lone_token_is_neither_in_the_spec_nor_shown(name: str, tmp_path: Path) -> None:
    user = User(tmp_path, NOBODY)
    (tmp_path / name).write_text(TOKENS[name])
    ran = user.runs("init", name, "--no-lock", "--format", "json")
    assert "github.com/a/b" in ran.stdout
    texts = [ran.stdout, ran.stderr, *(path.read_text() for path in (tmp_path / "specs").iterdir())]
    for form in ("text", "json", "github", "sarif"):
        audited = user.runs("audit-project", name, "--offline", "--format", form)
        texts += [audited.stdout, audited.stderr]
    assert SECRET not in "".join(texts)


def test_users_of_ssh_and_variables_stay_and_a_removed_login_is_reported(tmp_path: Path) -> None:
    user = User(tmp_path, NOBODY)
    lines = [
        "a @ git+ssh://git@github.com/a/a",
        "b @ git+https://${TOKEN}@github.com/a/b",
        "c @ git+https://me@github.com/a/c",
    ]
    (tmp_path / "requirements.txt").write_text("\n".join(lines))
    ran = user.runs("init", "requirements.txt", "--no-lock", "--format", "json")
    spec = next((tmp_path / "specs").iterdir()).read_text()
    kept = [*lines[:2], "c @ git+https://github.com/a/c"]
    assert [line for line in kept if f'"{line}"' not in spec] == []
    reasons = {row["line"]: row["reason"] for row in json.loads(ran.stdout)["ledger"]}
    hint = "without its login, which must not be in a spec: write a variable, `https://${TOKEN}@host/...`"
    assert [hint in reasons[line] for line in (1, 2, 3)] == [False, False, True]
