"""Finding a lock and writing its folder: what changes, what stays, and the messages if it can't be done."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from envspec.errors import StaleLock, UsageError
from envspec.lockfile.document import canonical, dump
from envspec.lockfile.folder import Exchange, LockNotWritable, find_lock, read_lock, rename_exchange, tidy, write_folder
from envspec.lockfile.header import LOCK_FILE
from tests.support.builders.locks import example, lock, sha256

ROOT = Path(__file__).parents[2]


def files(version: str, *names: str) -> dict[str, bytes]:
    """A lock's files that say `version`, but for `same.txt`."""
    made = {
        name: f"# written by `envspec lock`\n{name} {version if name != 'same.txt' else ''}\n".encode()
        for name in names
    }
    hashes = {name: sha256(data.decode()) for name, data in made.items()}
    return {**made, LOCK_FILE: dump(lock(name=version), hashes).encode()}


def on_disk(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def put(folder: Path, data: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in data.items():
        (folder / name).write_bytes(content)


def no_exchange(one: Path, other: Path) -> None:
    """What a file system without renameat2's flags answers."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


WAYS = pytest.mark.parametrize("exchange", [rename_exchange, no_exchange], ids=["exchange", "renames"])


@WAYS
def test_a_folder_is_made_changed_and_left_alone(tmp_path: Path, exchange: Exchange) -> None:
    """Modes do not depend on the umask; what is equal is not touched; the user's own files stay, links too."""
    folder = tmp_path / "a" / "locks" / "one"
    before = os.umask(0o077)
    try:
        first = files("1", "Dockerfile", "same.txt", "requirements.win-64.txt")
        assert write_folder(folder, first, exchange=exchange) == tuple(folder / name for name in sorted(first))
        assert on_disk(folder) == first
        put(folder, {"README.md": b"mine", ".hidden": b"mine too"})
        (folder / "link").symlink_to("README.md")
        for item in folder.iterdir():
            os.utime(item, (1, 1), follow_symlinks=False)
        second = files("2", "Dockerfile", "same.txt")
        changed = write_folder(folder, second, exchange=exchange)
    finally:
        os.umask(before)
    assert [path.name for path in changed] == ["Dockerfile", LOCK_FILE, "requirements.win-64.txt"]
    assert on_disk(folder) == second | {"README.md": b"mine", ".hidden": b"mine too", "link": b"mine"}
    assert (folder / "link").is_symlink() and (folder / "README.md").stat().st_nlink == 1
    untouched = [item.name for item in folder.iterdir() if item.lstat().st_mtime == 1]
    assert sorted(untouched) == [".hidden", "README.md", "link", "same.txt"]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (*folder.parents, folder, *folder.iterdir())}
    assert {modes[name] for name in ("a", "locks", "one")} == {0o755}
    assert {modes[name] for name in second} == {0o644}
    assert list(folder.parent.iterdir()) == [folder]

    known = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (folder.parent, folder, *folder.iterdir())}
    assert write_folder(folder, second, exchange=exchange) == ()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in known} == known


def test_a_folder_that_contains_folders_is_changed_in_place(tmp_path: Path) -> None:
    put(tmp_path / "one" / "inner", {})
    before = (tmp_path / "one").stat().st_ino
    for version in ("1", "2"):
        write_folder(tmp_path / "one", files(version, "Dockerfile"))
    assert (tmp_path / "one").stat().st_ino == before
    assert sorted(item.name for item in (tmp_path / "one").iterdir()) == ["Dockerfile", LOCK_FILE, "inner"]


def test_the_current_directory_is_changed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    monkeypatch.chdir(tmp_path / "one")
    assert write_folder(Path(), files("2", "Dockerfile")) == (Path("Dockerfile"), Path(LOCK_FILE))
    assert Path("Dockerfile").read_bytes() == files("2", "Dockerfile")["Dockerfile"]


def test_the_mode_of_an_existing_folder_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    (tmp_path / "one").chmod(0o2775)
    write_folder(tmp_path / "one", files("2", "Dockerfile"))
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o2775


@WAYS
def test_a_linked_folder_stays_a_link(tmp_path: Path, exchange: Exchange) -> None:
    put(tmp_path / "elsewhere", {})
    (tmp_path / "one").symlink_to("elsewhere")
    changed = write_folder(tmp_path / "one", files("1", "Dockerfile"), exchange=exchange)
    assert changed[0] == tmp_path / "one" / "Dockerfile"
    assert (tmp_path / "one").is_symlink()
    assert on_disk(tmp_path / "elsewhere") == files("1", "Dockerfile")


def test_a_link_to_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    put(tmp_path, {"precious": b"mine"})
    (tmp_path / "one" / "Dockerfile").unlink()
    (tmp_path / "one" / "Dockerfile").symlink_to(tmp_path / "precious")
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    assert (tmp_path / "precious").read_bytes() == b"mine"
    assert not (tmp_path / "one" / "Dockerfile").is_symlink()


@WAYS
def test_what_is_in_the_way_is_not_replaced(tmp_path: Path, exchange: Exchange) -> None:
    put(tmp_path / "file", {"Dockerfile": b"FROM mine\n"})
    put(tmp_path / "folder" / "Dockerfile", {})
    put(tmp_path, {"plain": b"mine"})
    for name, message in (
        ("file", "Dockerfile exists and was not written by envspec"),
        ("folder", "Dockerfile is a folder"),
        ("plain", "is a file, not a folder"),
        ("plain/two", "a part of that path is a file"),
    ):
        with pytest.raises(LockNotWritable, match=message) as caught:
            write_folder(tmp_path / name, files("1", "Dockerfile"), exchange=exchange)
        assert caught.value.exit_code == 2
    assert on_disk(tmp_path / "file") == {"Dockerfile": b"FROM mine\n"}
    assert (tmp_path / "plain").read_bytes() == b"mine"


@WAYS
def test_a_damaged_lock_is_replaced_with_what_it_wrote(tmp_path: Path, exchange: Exchange) -> None:
    folder = tmp_path / "one"
    made = ("requirements.linux-64.txt", "requirements.win-64.txt", "conda-win-64.lock", "conda-lock.yml")
    write_folder(folder, files("1", *made), exchange=exchange)
    put(folder, {"requirements.mine.txt": b"mine", "README.md": b"# written by `envspec lock`"})
    document = folder / LOCK_FILE
    document.write_bytes(b"<<<<<<< HEAD\n" + document.read_bytes())
    write_folder(folder, files("2", "requirements.linux-64.txt"), exchange=exchange)
    assert sorted(on_disk(folder)) == ["README.md", LOCK_FILE, "requirements.linux-64.txt", "requirements.mine.txt"]


def test_names_outside_of_the_folder(tmp_path: Path) -> None:
    for name in ("../x", "a/b", ".hidden", "", "a\\b"):
        with pytest.raises(ValueError, match="not a name for a file of a lock"):
            write_folder(tmp_path / "one", {name: b""})
    assert list(tmp_path.iterdir()) == []
    put(tmp_path, {"precious": b"mine"})
    put(tmp_path / "one", {LOCK_FILE: dump(lock(), {"../precious": "0" * 64}).encode()})
    write_folder(tmp_path / "one", files("2", "Dockerfile"))
    assert (tmp_path / "precious").read_bytes() == b"mine"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's, and no one may make folders there, root neither")
def test_a_place_where_nothing_can_be_written() -> None:
    with pytest.raises(LockNotWritable, match=r"^/proc/envspec/one can't be written") as caught:
        write_folder(Path("/proc/envspec/one"), files("1", "Dockerfile"))
    assert caught.value.exit_code == 2


@WAYS
def test_a_folder_that_may_not_be_written(tmp_path: Path, exchange: Exchange) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; /proc stands in for it above")
    folder = tmp_path / "locks" / "one"
    write_folder(folder, files("1", "Dockerfile"))
    folder.chmod(0o555)
    folder.parent.chmod(0o555)
    try:
        with pytest.raises(LockNotWritable, match="can't be written: Permission denied"):
            write_folder(folder, files("2", "Dockerfile"), exchange=exchange)
        assert on_disk(folder) == files("1", "Dockerfile")
    finally:
        folder.parent.chmod(0o755)
        folder.chmod(0o755)


@pytest.mark.parametrize("way", ["rename_exchange", "no_exchange"])
def test_no_room(tmp_path: Path, way: str) -> None:
    """The system's own limit on a file's size stands in for a full disk: the write fails half-way."""
    folder = tmp_path / "locks" / "one"
    write_folder(folder, files("1", "Dockerfile"))
    code = f"""
        import resource, signal, sys
        from pathlib import Path
        from envspec.lockfile.folder import LockNotWritable, rename_exchange, write_folder
        from tests.lockfile.test_folder import files, no_exchange
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            write_folder(Path(sys.argv[1]), {{**files("2", "Dockerfile"), "big.txt": b"x" * 5000}}, exchange={way})
        except LockNotWritable as fault:
            print(fault)
            raise SystemExit(fault.exit_code)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"no space to write the lock into {folder}")
    assert "untouched" in done.stdout
    assert on_disk(folder) == files("1", "Dockerfile")
    assert list(folder.parent.iterdir()) == [folder]


def test_a_kill_between_renames_leaves_the_old_lock_and_the_next_run_repairs_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    old, new = files("1", "Dockerfile", "gone.txt"), files("2", "Dockerfile")
    write_folder(folder, old)
    (folder / "gone.txt").unlink()
    put(folder, {"Dockerfile": new["Dockerfile"]})
    put(folder / ".one.envspec-new-x", {LOCK_FILE: new[LOCK_FILE]})
    assert read_lock(folder).name == "1"
    assert find_lock("one", tmp_path) == folder
    write_folder(folder, old)
    assert on_disk(folder) == old


@pytest.mark.parametrize("state", ["unfinished", "before", "after"])
def test_a_killed_run_leaves_nothing_beside(tmp_path: Path, state: str) -> None:
    """The folder beside is unfinished, or about to be exchanged, or the old one: no file of the user's is lost."""
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile", "gone.txt"))
    put(folder, {"mine.txt": b"mine", "edited.txt": b"new"})
    beside = tmp_path / ".one.envspec-new-abc"
    if state == "unfinished":
        put(beside, {"Dockerfile": b"half a fi"})
    else:
        put(beside, files("2", "Dockerfile"))
        for name in ("mine.txt", "edited.txt"):
            (beside / name).hardlink_to(folder / name)
    if state == "after":
        rename_exchange(folder, beside)
    tidy(folder)
    assert list(tmp_path.iterdir()) == [folder]
    others = {"mine.txt": b"mine", "edited.txt": b"new"}
    if state == "after":
        assert on_disk(folder) == files("2", "Dockerfile") | others
    else:
        assert on_disk(folder) == files("1", "Dockerfile", "gone.txt") | others


def test_files_of_the_last_moment_stay(tmp_path: Path) -> None:
    """Somebody adds a file and edits another one after the new folder has been written."""
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile"))
    put(folder, {"mine.txt": b"mine", "edited.txt": b"old"})
    os.utime(folder / "edited.txt", (1, 1))

    def exchange(one: Path, other: Path) -> None:
        (other / "edited.txt").unlink()
        put(other, {"late.txt": b"added at the last moment", "edited.txt": b"new"})
        rename_exchange(one, other)

    write_folder(folder, files("2", "Dockerfile"), exchange=exchange)
    others = {"mine.txt": b"mine", "edited.txt": b"new", "late.txt": b"added at the last moment"}
    assert on_disk(folder) == files("2", "Dockerfile") | others
    assert list(tmp_path.iterdir()) == [folder]


def test_one_leftover_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile"))
    strange = tmp_path / ".one.envspec-new-m" / "folder"
    for name in ("new-a", "new-z"):
        put(tmp_path / f".one.envspec-{name}", {})
    put(strange, {"whose.txt": b"nobody knows"})
    put(tmp_path / ".one.envspec-partial", {"bin": b"an environment that is being installed"})
    write_folder(folder, files("2", "Dockerfile"))
    left = sorted(item.name for item in tmp_path.iterdir())
    assert left == [".one.envspec-new-m", ".one.envspec-partial", "one"]
    assert (strange / "whose.txt").exists()


def test_another_run_is_waited_for(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(LockNotWritable, match="another run of envspec is writing"):
        write_folder(tmp_path / "one", files("1", "Dockerfile"), wait_s=0.05)
    os.close(descriptor)
    write_folder(tmp_path / "one", files("1", "Dockerfile"), wait_s=0.05)
    assert list(tmp_path.iterdir()) == [tmp_path / "one"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("pytorch-2.8", "pytorch-2.9", "cpu"):
        write_folder(tmp_path / "locks" / name, {LOCK_FILE: dump(lock(name=name), {}).encode()})
    (tmp_path / "locks" / "notes").mkdir()
    for name in ("cpu.toml", "uv.lock", "poetry.lock", "requirements.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    return tmp_path


NO_LOCK = (
    "name a folder with an envspec.lock, a name under locks/, or a uv.lock, pylock.toml, poetry.lock, pixi.lock, "
    "conda-lock.yml or requirements.txt with hashes, which other tools export"
)


@pytest.mark.parametrize(
    "argument", ["cpu", "locks/cpu", "locks/cpu/", "locks/cpu/envspec.lock", "./locks/../locks/cpu", "{root}/locks/cpu"]
)
def test_words_for_a_lock(project: Path, argument: str) -> None:
    found = find_lock(argument.format(root=project), project)
    assert found.resolve() == (project / "locks" / "cpu").resolve()
    assert read_lock(found).name == "cpu"


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("pytorch-2.7", "there is no lock pytorch-2.7\n  hint: did you mean pytorch-2.9 or pytorch-2.8?"),
        ("zebra", "there is no lock zebra\n  hint: locks under locks/: cpu, pytorch-2.8, pytorch-2.9"),
        ("cpu.toml", f"cpu.toml is not a lock that envspec reads\n  hint: {NO_LOCK}"),
        (
            "uv.lock",
            "uv.lock is a lock of another tool, and envspec's own locks are needed here\n"
            '  hint: write one: a spec with `from = "uv.lock"` in [pip], and `envspec lock`',
        ),
        ("pixi.lock", "there is no lock pixi.lock\n  hint: write it with the tool that pixi.lock is of"),
        ("libs/own/uv.lock", "there is no lock libs/own/uv.lock\n  hint: name that of the workspace: uv.lock"),
        (".", "there is no envspec.lock in .\n  hint: name the file: poetry.lock or uv.lock"),
        (
            "locks/notes",
            "there is no envspec.lock in locks/notes\n  hint: locks under locks/: cpu, pytorch-2.8, pytorch-2.9",
        ),
    ],
)
def test_no_such_lock(project: Path, argument: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_lock(argument, project)
    assert str(caught.value) == said


def test_no_locks_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="`envspec lock SPEC` writes one"):
        find_lock("cpu", tmp_path)


def test_reading(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read: No such file"):
        read_lock(tmp_path)
    put(tmp_path, {LOCK_FILE: dump(example(), {}).encode()})
    assert read_lock(tmp_path) == canonical(example())
    put(tmp_path, {LOCK_FILE: b"\xff\xfe"})
    with pytest.raises(StaleLock, match="is not text"):
        read_lock(tmp_path)
