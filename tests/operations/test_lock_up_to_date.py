"""`envspec lock SPEC` again: without imports, unless something has changed since the last run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.builders.ecosystem import release
from tests.support.servers.faults import Status
from tests.support.servers.index import IndexServer
from tests.support.user import ROOT, Ran, User, succeeded

SPEC: Final = """dependencies_from = ["../pyproject.toml:group:train"]

[env]
name = "small"
python = "3.11.7"

[variants.more]
dependencies_from = ["../pyproject.toml:group:more"]
"""
PROJECT: Final = '[dependency-groups]\ntrain = ["one"]\nmore = ["two"]\n'
WORDS: Final = ("lock", "small")
CHECK: Final = ("lock", "--check", "small")
#: The command; stdout says at its end whether it ran in full.
PROGRAM: Final = """
import os, sys
def leave(code, end=os._exit):
    print("in full" if "click" in sys.modules else "", flush=True)
    end(code)
os._exit = leave
from envspec.__main__ import main
main()
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes of folders as on Unix")


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([release(name, "1.0.0") for name in ("one", "two")]) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, index: IndexServer) -> User:
    """A spec with a variant and lines of another file, whose locks were found up to date by both commands."""
    user = User(tmp_path_factory.mktemp("locked"), index.url)
    (user.folder / "specs").mkdir()
    user.spec = user.folder / "specs" / "small.toml"
    user.writes(SPEC)
    (user.folder / "pyproject.toml").write_text(PROJECT)
    succeeded(user.runs("lock", "small"))
    return user


@pytest.fixture
def user(tmp_path: Path, locked: User) -> User:
    shutil.copytree(locked.folder, tmp_path, dirs_exist_ok=True)
    user = User(tmp_path, locked.environ["ENVSPEC_DEFAULT_INDEX"])
    user.spec = tmp_path / "specs" / "small.toml"
    assert is_in_full(runs(user, *WORDS))
    assert not is_in_full(runs(user, *WORDS))
    return user


def runs(user: User, *words: str, **environ: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=user.folder,
        env={**user.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def is_in_full(ran: Ran) -> bool:
    return "in full" in ran.stdout


def flip(path: Path) -> None:
    """Change one byte, and nothing else that `stat` shows but the time of the change."""
    before = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"#" + content[-1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def leave_folder(folder: Path) -> None:
    (folder / "locks" / ".small.envspec-new-abc").mkdir()


def write_settings(folder: Path) -> None:
    config = folder / "home" / ".config" / "envspec" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("jobs = 2\n")


def record_of(folder: Path) -> list[Path]:
    return list((folder / "cache" / "index").glob("up-to-date-*"))


def forget_locks(folder: Path) -> None:
    (store,) = (folder / "cache" / "index").glob("v*")
    shutil.rmtree(store)


def damage_records(folder: Path) -> None:
    for path in record_of(folder):
        path.write_bytes(path.read_bytes()[1:])


def empty_records(folder: Path) -> None:
    for path in record_of(folder):
        path.write_bytes(b"")


def replace_by_pipe(folder: Path) -> None:
    (folder / "pyproject.toml").unlink()
    os.mkfifo(folder / "pyproject.toml")


def enlarge(path: Path) -> None:
    """More than fits into memory; takes no space on the disk."""
    os.truncate(path, 1 << 42)


CHANGES: Final[dict[str, Callable[[Path], object]]] = {
    "a byte of the spec": lambda folder: flip(folder / "specs/small.toml"),
    "a byte of the file that it takes lines from": lambda folder: flip(folder / "pyproject.toml"),
    "no such file": lambda folder: (folder / "pyproject.toml").unlink(),
    "a pipe": replace_by_pipe,
    "no spec": lambda folder: (folder / "specs/small.toml").unlink(),
    "a byte of the lock": lambda folder: flip(folder / "locks/small/envspec.lock"),
    "a byte of a file beside it": lambda folder: flip(folder / "locks/small/requirements.linux-64.txt"),
    "a huge file that it takes lines from": lambda folder: enlarge(folder / "pyproject.toml"),
    "a huge spec": lambda folder: enlarge(folder / "specs/small.toml"),
    "a huge lock": lambda folder: enlarge(folder / "locks/small/envspec.lock"),
    "a huge file beside it": lambda folder: enlarge(folder / "locks/small/requirements.linux-64.txt"),
    "a file is missing": lambda folder: (folder / "locks/small/requirements.linux-64.txt").unlink(),
    "the lock is missing": lambda folder: shutil.rmtree(folder / "locks/small"),
    "a byte of a variant's lock": lambda folder: flip(folder / "locks/small-more/envspec.lock"),
    "a variant's lock is missing": lambda folder: shutil.rmtree(folder / "locks/small-more"),
    "what a killed run left": leave_folder,
    "settings": write_settings,
    "others can read the cache": lambda folder: (folder / "cache").chmod(0o755),
    "others can write to a parent of the cache": lambda folder: folder.chmod(0o777),
    "a damaged record": damage_records,
    "an empty record": empty_records,
    "nothing is known of locks": forget_locks,
    "no cache": lambda folder: shutil.rmtree(folder / "cache"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_it_runs_in_full(user: User, change: str) -> None:
    CHANGES[change](user.folder)
    assert is_in_full(runs(user, *WORDS))


def test_files_are_found_as_they_are_read(user: User) -> None:
    """A folder that does not exist, and links, do not count in a path of `dependencies_from`."""
    user.writes(SPEC.replace("../pyproject.toml", "none/../../pyproject.toml"))
    succeeded(runs(user, *WORDS))
    assert not is_in_full(runs(user, *WORDS))
    (user.folder / "pyproject.toml").write_text(PROJECT.replace('"one"', '"one", "two"'))
    assert runs(user, *CHECK).status == 3
    assert "envspec.lock" in runs(user, *WORDS).stdout


def test_a_check_is_known_by_itself(user: User) -> None:
    assert is_in_full(runs(user, *CHECK)) and not is_in_full(runs(user, *CHECK))
    flip(user.lock / "requirements.linux-64.txt")
    for _ in range(2):
        changed = runs(user, *CHECK)
        assert is_in_full(changed) and changed.status == 3
    # Locked again, it is what it was.
    assert runs(user, *WORDS).stdout and not is_in_full(runs(user, *CHECK))


def test_what_is_printed_is_the_same(user: User) -> None:
    empty_records(user.folder)
    for words in (WORDS, CHECK):
        full, again = runs(user, *words), runs(user, *words)
        assert is_in_full(full) and not is_in_full(again)
        assert (again.status, again.stdout, again.stderr) == (full.status, "\n", full.stderr)
    assert full.stderr == "locks/small: up to date\nlocks/small-more: up to date\n"


def test_a_run_that_writes_is_known_as_well(user: User) -> None:
    empty_records(user.folder)
    flip(user.lock / "requirements.linux-64.txt")
    assert "requirements.linux-64.txt" in runs(user, *WORDS).stdout
    again = runs(user, *WORDS)
    assert not is_in_full(again) and again.stderr.startswith("locks/small: nothing changed\n")


def test_a_lock_without_digests_is_not_known(tmp_path: Path) -> None:
    """A server of wheels that fails today may send them in the next run."""
    with IndexServer([release("one", "1.0.0")]) as index:
        index.fail("*.whl", Status(404))
        user = User(tmp_path, index.url)
        user.wants("one")
        for _ in range(3):
            assert is_in_full(runs(user, "lock", "spec.toml"))
        index.heal()
        assert "envspec.lock" in runs(user, "lock", "spec.toml").stdout
        assert not is_in_full(runs(user, "lock", "spec.toml"))


def test_what_a_killed_run_left_is_removed(user: User) -> None:
    leave_folder(user.folder)
    runs(user, *WORDS)
    assert [path.name for path in (user.folder / "locks").iterdir() if path.name.startswith(".")] == []


def test_the_same_bytes_again(user: User) -> None:
    """Only bytes count: a checkout writes all files again."""
    for path in (user.spec, user.lock / "envspec.lock"):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    assert not is_in_full(runs(user, *WORDS))


@pytest.mark.parametrize(
    "words",
    [
        ("lock", "small", "-q"),
        ("lock", "small", "--format", "json"),
        ("lock", "small", "--dry-run"),
        ("lock", "small", "--offline"),
        ("lock", "small", "--verify"),
        ("lock", "small", "specs/small.toml"),
        ("-q", "lock", "small"),
    ],
    ids=" ".join,
)
def test_other_command_lines_always_run_in_full(user: User, words: tuple[str, ...]) -> None:
    for _ in range(2):
        assert is_in_full(runs(user, *words))


@pytest.mark.parametrize("words", [("lock", "specs/small.toml"), ("lock", "small", "--output", "locks/small")])
def test_each_command_line_is_known_by_itself(user: User, words: tuple[str, ...]) -> None:
    assert is_in_full(runs(user, *words))
    assert not is_in_full(runs(user, *words))


def test_variables_count(user: User, tmp_path: Path) -> None:
    assert not is_in_full(runs(user, *WORDS, OTHER="1"))
    for name, value in (("ENVSPEC_JOBS", "3"), ("XDG_CONFIG_HOME", str(tmp_path)), ("HOME", str(tmp_path))):
        assert is_in_full(runs(user, *WORDS, **{name: value})), name
    wrong = runs(user, *WORDS, ENVSPEC_OFFLINE="perhaps")
    assert wrong.status == 2 and is_in_full(wrong)
    assert is_in_full(runs(user, *WORDS, _ENVSPEC_COMPLETE="bash_complete"))


def test_a_cache_behind_a_link(user: User, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    for _ in range(2):
        assert is_in_full(runs(user, *WORDS, ENVSPEC_CACHE_DIR=str(tmp_path / "link")))


def test_the_folder_of_caches_is_found(user: User, tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir(mode=0o700)
    (tmp_path / "cache").rename(tmp_path / "caches" / "envspec")
    environ = {"ENVSPEC_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path / "caches")}
    if sys.platform == "linux":
        assert is_in_full(runs(user, *WORDS, **environ))
        assert not is_in_full(runs(user, *WORDS, **environ))


def test_other_facts_and_another_envspec(user: User, tmp_path: Path) -> None:
    """envspec that is installed anew, of the same version, or with other facts."""
    code = tmp_path / "code"
    shutil.copytree(ROOT / "envspec", code / "envspec", ignore=shutil.ignore_patterns("__pycache__"))
    own = {"PYTHONPATH": str(code)}
    assert is_in_full(runs(user, *WORDS, **own)) and not is_in_full(runs(user, *WORDS, **own))
    facts = code / "envspec" / "data" / "names.toml"
    before = facts.stat()
    facts.write_bytes(facts.read_bytes() + b"\n")
    os.utime(facts, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_in_full(runs(user, *WORDS, **own)) and not is_in_full(runs(user, *WORDS, **own))
    version = code / "envspec" / "version.py"
    version.write_text(version.read_text().replace('"0.1.0"', '"0.1.1"'))
    assert is_in_full(runs(user, *WORDS, **own))


def test_warnings_are_never_lost(tmp_path: Path, index: IndexServer) -> None:
    url = index.url.replace("://", "://user:secret@")
    user = User(tmp_path, index.url)
    user.wants("one", rest=f'[[pip.index]]\nname = "own"\nurl = "{url}"\npackages = ["two"]\n')
    succeeded(user.locks())
    for _ in range(3):
        ran = runs(user, "lock", "spec.toml")
        assert is_in_full(ran) and "contains a password" in ran.stderr


def test_a_check_makes_no_cache(user: User, tmp_path: Path) -> None:
    environ = {"ENVSPEC_CACHE_DIR": str(tmp_path / "none")}
    assert succeeded(runs(user, *CHECK, **environ)).stderr and not (tmp_path / "none").exists()


def test_streams_that_nobody_reads(user: User) -> None:
    command = f"exec {sys.executable} -m envspec lock small 2>&- >&-"
    assert subprocess.run(command, shell=True, cwd=user.folder, env=user.environ, check=False).returncode == 0
    full = f"{sys.executable} -m envspec lock small 2>/dev/full"
    assert subprocess.run(full, shell=True, cwd=user.folder, env=user.environ, check=False).returncode == 0
