"""Finding a lock and writing its folder: what changes, what stays, and what is said when it can't be done."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from envspec.errors import StaleLock, UsageError
from envspec.lock import swap
from envspec.lock.canonical import canonical
from envspec.lock.disk import CannotWrite, exclusive
from envspec.lock.document import dump
from envspec.lock.find import find_lock
from envspec.lock.folder import read_lock, write_folder
from envspec.lock.head import LOCK_FILE
from envspec.lock.names import COMMITTED, STAGED
from envspec.lock.plan import make_plan
from tests.support.builders.locks import example, lock, sha256

ROOT = Path(__file__).parents[2]


def files(version: str, *names: str) -> dict[str, bytes]:
    """A lock's files that say `version`."""
    made = {name: f"# by envspec lock\n{name} {version}\n".encode() for name in names}
    hashes = {name: sha256(data.decode()) for name, data in made.items()}
    return {**made, LOCK_FILE: dump(lock(name=version), hashes).encode()}


def held(folder: Path) -> dict[str, bytes]:
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def no_exchange(one: Path, other: Path) -> None:
    """What a file system without renameat2's flags answers."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


WAYS = pytest.mark.parametrize("exchange", [swap.exchange, no_exchange], ids=["exchange", "journal"])


@WAYS
def test_a_new_folder_is_made_with_those_above_it(tmp_path: Path, exchange: swap.Exchange) -> None:
    folder = tmp_path / "a" / "locks" / "one"
    new = files("1", "Dockerfile", "requirements.linux-64.txt")
    changed = write_folder(folder, new, exchange=exchange)
    assert changed == tuple(folder / name for name in sorted(new))
    assert held(folder) == new
    assert list(folder.parent.iterdir()) == [folder]


@WAYS
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, exchange: swap.Exchange) -> None:
    before = os.umask(0o077)
    try:
        write_folder(tmp_path / "locks" / "one", files("1", "Dockerfile"), exchange=exchange)
        write_folder(tmp_path / "locks" / "one", files("2", "Dockerfile"), exchange=exchange)
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "locks": 0o755,
        "locks/one": 0o755,
        f"locks/one/{LOCK_FILE}": 0o644,
        "locks/one/Dockerfile": 0o644,
    }


@WAYS
def test_only_what_differs_is_written(tmp_path: Path, exchange: swap.Exchange) -> None:
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile", "same.txt"), exchange=exchange)
    same = files("1", "same.txt")["same.txt"]
    for item in folder.iterdir():
        os.utime(item, (1, 1))
    changed = write_folder(folder, {**files("2", "Dockerfile"), "same.txt": same}, exchange=exchange)
    assert changed == (folder / "Dockerfile", folder / LOCK_FILE)
    assert [item.name for item in sorted(folder.iterdir()) if item.stat().st_mtime == 1] == ["same.txt"]


@WAYS
def test_equal_bytes_touch_nothing(tmp_path: Path, exchange: swap.Exchange) -> None:
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile"), exchange=exchange)
    before = {path: path.stat() for path in (tmp_path, folder, *folder.iterdir())}
    assert write_folder(folder, files("1", "Dockerfile"), exchange=exchange) == ()
    assert {path: path.stat().st_mtime_ns for path in before} == {
        path: known.st_mtime_ns for path, known in before.items()
    }
    assert folder.stat().st_ino == before[folder].st_ino


@WAYS
def test_files_of_the_lock_go_and_files_of_others_stay(tmp_path: Path, exchange: swap.Exchange) -> None:
    folder = tmp_path / "one"
    write_folder(folder, files("1", "requirements.linux-64.txt", "requirements.win-64.txt"), exchange=exchange)
    (folder / "README.md").write_text("mine", encoding="utf-8")
    (folder / "link").symlink_to("README.md")
    (folder / ".hidden").write_text("mine too", encoding="utf-8")
    os.utime(folder / "README.md", (1, 1))
    changed = write_folder(folder, files("2", "requirements.linux-64.txt"), exchange=exchange)
    assert [path.name for path in changed] == [LOCK_FILE, "requirements.linux-64.txt", "requirements.win-64.txt"]
    assert sorted(held(folder)) == [".hidden", "README.md", LOCK_FILE, "link", "requirements.linux-64.txt"]
    assert (folder / "link").is_symlink()
    assert (folder / "README.md").stat().st_mtime == 1
    assert (folder / "README.md").stat().st_nlink == 1


def test_a_folder_that_holds_folders_is_changed_in_place(tmp_path: Path) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    before = (tmp_path / "one").stat().st_ino
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    write_folder(tmp_path / "one", files("2", "Dockerfile"))
    assert (tmp_path / "one").stat().st_ino == before
    assert (tmp_path / "one" / "inner").is_dir()
    assert sorted(item.name for item in (tmp_path / "one").iterdir()) == ["Dockerfile", LOCK_FILE, "inner"]


def test_the_current_directory_is_not_pulled_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    monkeypatch.chdir(tmp_path / "one")
    assert write_folder(Path(), files("2", "Dockerfile")) == (Path("Dockerfile"), Path(LOCK_FILE))
    assert Path("Dockerfile").read_bytes() == files("2", "Dockerfile")["Dockerfile"]


def test_the_mode_of_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    (tmp_path / "one").chmod(0o2775)
    write_folder(tmp_path / "one", files("2", "Dockerfile"))
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o2775


@WAYS
def test_a_linked_folder_stays_a_link(tmp_path: Path, exchange: swap.Exchange) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "one").symlink_to("elsewhere")
    changed = write_folder(tmp_path / "one", files("1", "Dockerfile"), exchange=exchange)
    assert changed[0] == tmp_path / "one" / "Dockerfile"
    assert (tmp_path / "one").is_symlink()
    assert held(tmp_path / "elsewhere") == files("1", "Dockerfile")


def test_a_link_to_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (tmp_path / "one" / "Dockerfile").unlink()
    (tmp_path / "one" / "Dockerfile").symlink_to(precious)
    write_folder(tmp_path / "one", files("1", "Dockerfile"))
    assert precious.read_bytes() == b"mine"
    assert not (tmp_path / "one" / "Dockerfile").is_symlink()


@WAYS
def test_a_file_that_envspec_did_not_write_is_not_replaced(tmp_path: Path, exchange: swap.Exchange) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"FROM mine\n")
    with pytest.raises(CannotWrite, match=r"Dockerfile is there already and was not written by envspec") as caught:
        write_folder(tmp_path, files("1", "Dockerfile"), exchange=exchange)
    assert caught.value.exit_code == 2
    assert held(tmp_path) == {"Dockerfile": b"FROM mine\n"}


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").mkdir()
    with pytest.raises(CannotWrite, match=r"Dockerfile is a folder"):
        write_folder(tmp_path, files("1", "Dockerfile"))


@WAYS
def test_a_damaged_lock_is_written_over_with_what_it_made(tmp_path: Path, exchange: swap.Exchange) -> None:
    folder = tmp_path / "one"
    made = ("requirements.linux-64.txt", "requirements.win-64.txt", "conda-win-64.lock", "conda-lock.yml")
    write_folder(folder, files("1", *made), exchange=exchange)
    (folder / "requirements.mine.txt").write_text("mine", encoding="utf-8")
    document = folder / LOCK_FILE
    document.write_bytes(b"<<<<<<< HEAD\n" + document.read_bytes())
    write_folder(folder, files("2", "requirements.linux-64.txt"), exchange=exchange)
    assert sorted(held(folder)) == [LOCK_FILE, "requirements.linux-64.txt", "requirements.mine.txt"]


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "a/b", ".hidden", "", "a\\b"):
        with pytest.raises(ValueError, match="not a name for a file of a lock"):
            write_folder(tmp_path / "one", {name: b""})
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_names_files_outside_does_not_make_them_go(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / LOCK_FILE).write_text(dump(lock(), {"../precious": "0" * 64}), encoding="utf-8")
    write_folder(tmp_path / "one", files("2", "Dockerfile"))
    assert precious.read_bytes() == b"mine"


def test_a_target_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"mine")
    with pytest.raises(CannotWrite, match="is a file, not a folder"):
        write_folder(tmp_path / "one", files("1", "Dockerfile"))
    with pytest.raises(CannotWrite, match="a part of that path is a file"):
        write_folder(tmp_path / "one" / "two", files("1", "Dockerfile"))
    assert (tmp_path / "one").read_bytes() == b"mine"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's, and no one may make folders there, root neither")
def test_a_place_where_nothing_can_be_written() -> None:
    with pytest.raises(CannotWrite, match=r"^/proc/envspec/one can't be written") as caught:
        write_folder(Path("/proc/envspec/one"), files("1", "Dockerfile"))
    assert caught.value.exit_code == 2


@WAYS
def test_a_folder_that_may_not_be_written(tmp_path: Path, exchange: swap.Exchange) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; /proc stands in for it above")
    folder = tmp_path / "locks" / "one"
    write_folder(folder, files("1", "Dockerfile"))
    folder.chmod(0o555)
    folder.parent.chmod(0o555)
    try:
        with pytest.raises(CannotWrite, match="can't be written: Permission denied"):
            write_folder(folder, files("2", "Dockerfile"), exchange=exchange)
        assert held(folder) == files("1", "Dockerfile")
    finally:
        folder.parent.chmod(0o755)
        folder.chmod(0o755)


@pytest.mark.parametrize("way", ["swap.exchange", "no_exchange"])
def test_no_room(tmp_path: Path, way: str) -> None:
    """The system's own limit on a file's size stands in for a full disk: the write fails half-way."""
    folder = tmp_path / "locks" / "one"
    write_folder(folder, files("1", "Dockerfile"))
    code = f"""
        import resource, signal, sys
        from pathlib import Path
        from envspec.lock import swap
        from envspec.lock.disk import CannotWrite
        from envspec.lock.folder import write_folder
        from tests.unit.test_lock_folder import files, no_exchange
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            write_folder(Path(sys.argv[1]), {{**files("2", "Dockerfile"), "big.txt": b"x" * 5000}}, exchange={way})
        except CannotWrite as fault:
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
    assert held(folder) == files("1", "Dockerfile")
    assert list(folder.parent.iterdir()) == [folder]


def test_a_killed_run_that_had_decided_is_finished_by_readers_and_by_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    old, new = files("1", "Dockerfile", "gone.txt"), files("2", "Dockerfile")
    write_folder(folder, old)
    stage = folder / COMMITTED
    stage.mkdir()
    (stage / ".removed").write_text("gone.txt\n../one/Dockerfile", encoding="utf-8")
    (stage / LOCK_FILE).write_bytes(new[LOCK_FILE])
    (folder / "Dockerfile").write_bytes(new["Dockerfile"])  # moved out already
    (folder / f"{STAGED}x").mkdir()
    assert read_lock(folder).name == "2"
    assert write_folder(folder, new) == ()
    assert held(folder) == new


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_run_leaves_nothing_beside_for_long(tmp_path: Path, moment: str) -> None:
    """Before the exchange the folder beside is new, after it it is the old one: neither is in the way."""
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile"))
    beside = tmp_path / ".one.envspec-abc"
    (beside / "new").mkdir(parents=True)
    (beside / "ours").write_text(f"Dockerfile\n{LOCK_FILE}", encoding="utf-8")
    for name, data in files("2", "Dockerfile").items():
        (beside / "new" / name).write_bytes(data)
    (beside / "new" / "late.txt").write_text("came in at the last moment", encoding="utf-8")
    (beside / "new" / "edited.txt").write_text("old", encoding="utf-8")
    os.utime(beside / "new" / "edited.txt", (1, 1))
    (folder / "edited.txt").write_text("new", encoding="utf-8")
    if moment == "after":
        swap.exchange(folder, beside / "new")
        (folder / "late.txt").rename(beside / "new" / "late.txt")
    write_folder(folder, files("3", "Dockerfile"))
    assert {name: data for name, data in held(folder).items() if name in files("3", "Dockerfile")} == files(
        "3", "Dockerfile"
    )
    assert (folder / "late.txt").exists()
    assert (folder / "edited.txt").read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [folder]


def test_one_leftover_that_cannot_be_taken_away_does_not_keep_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    write_folder(folder, files("1", "Dockerfile"))
    strange = tmp_path / ".one.envspec-strange" / "new"
    strange.mkdir(parents=True)
    (strange / "whose.txt").write_text("nobody knows", encoding="utf-8")
    for name in ("a", "b", "z"):
        (tmp_path / f".one.envspec-{name}").mkdir()
    write_folder(folder, files("2", "Dockerfile"))
    assert sorted(item.name for item in tmp_path.iterdir()) == [".one.envspec-strange", "one"]
    assert (strange / "whose.txt").exists()


def test_another_run_is_waited_for(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path, 1.0),
        pytest.raises(CannotWrite, match="another run of envspec is writing"),
    ):
        write_folder(tmp_path / "one", files("1", "Dockerfile"), wait_s=0.05)
    write_folder(tmp_path / "one", files("1", "Dockerfile"), wait_s=0.05)
    assert list(tmp_path.iterdir()) == [tmp_path / "one"]


def test_the_plan_of_nothing(tmp_path: Path) -> None:
    assert make_plan(tmp_path, {}).is_empty


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("pytorch-2.8", "pytorch-2.9", "cpu"):
        write_folder(tmp_path / "locks" / name, {LOCK_FILE: dump(lock(name=name), {}).encode()})
    (tmp_path / "locks" / "notes").mkdir()
    (tmp_path / "cpu.toml").write_text("", encoding="utf-8")
    return tmp_path


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
        ("zebra", "there is no lock zebra\n  hint: under locks/ there are: cpu, pytorch-2.8, pytorch-2.9"),
        ("cpu.toml", "cpu.toml is not a lock\n  hint: name a folder that holds an envspec.lock, or a lock's name"),
        (
            "locks/notes",
            "locks/notes holds no envspec.lock\n  hint: under locks/ there are: cpu, pytorch-2.8, pytorch-2.9",
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
    def write(data: Mapping[str, bytes]) -> None:
        for name, content in data.items():
            (tmp_path / name).write_bytes(content)

    with pytest.raises(UsageError, match="can't be read: No such file"):
        read_lock(tmp_path)
    write({LOCK_FILE: dump(example(), {}).encode()})
    assert read_lock(tmp_path) == canonical(example())
    write({LOCK_FILE: b"\xff\xfe"})
    with pytest.raises(StaleLock, match="is not text"):
        read_lock(tmp_path)
