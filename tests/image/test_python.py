"""A standalone Python and a venv as layers: what is in them, and what is refused."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from envspec.image.layers.types import PREFIX, EntryKind
from envspec.image.sources.bytecode import BadPython, PycCompiler
from envspec.image.sources.python import StandalonePython, Venv
from envspec.models import Python
from tests.support.builders import standalone
from tests.support.builders.entries import content, lay_out, rows_of
from tests.support.builders.standalone import SERIES, VERSION, Content, Device, Link

LIB: Final = f"{PREFIX}/lib/python{SERIES}"
OURS: Final = PycCompiler(Path(sys.executable), VERSION, 2)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="images are made on Linux and macOS only")


def source(path: Path, files: Mapping[str, Content], *locked: str, pyc: PycCompiler | None = None) -> StandalonePython:
    sha256 = standalone.write(path / "cpython.tar.gz", files)
    return StandalonePython(path / "cpython.tar.gz", sha256, VERSION, frozenset(locked), pyc)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StandalonePython:
    return source(tmp_path_factory.mktemp("whole"), standalone.of_running(), pyc=OURS)


@pytest.fixture(scope="module")
def image(whole: StandalonePython, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield lay_out(whole.entries(), tmp_path_factory.mktemp("image"))


def runs(image: Path, code: str) -> str:
    done = subprocess.run(
        [str(image / PREFIX / "bin/python"), "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"LD_LIBRARY_PATH": str(image / PREFIX / "lib")},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_runs_where_it_lies(image: Path) -> None:
    assert runs(image, "import sys; print(sys.prefix)") == str(image / PREFIX)
    assert runs(image, "import json, math; print(math.pi)").startswith("3.14")


@pytest.mark.skipif(sys.base_prefix == "/usr", reason="a Linux distribution's Python has no site-packages of its own")
def test_its_pip_is_found(image: Path) -> None:
    assert runs(image, "import pip; print(pip.__version__)") == "23.0"


def test_its_bytecode_is_used(image: Path) -> None:
    assert runs(image, "import sys, json.decoder as t; print(t.__cached__)").startswith(str(image / LIB))
    names = {path.relative_to(image / LIB).as_posix() for path in (image / LIB).rglob("*.py")}
    # Not by importlib: 3.10 has a `__phello__.foo.py`, whose bytecode's name that takes for another's.
    compiled = {
        (path.parents[1] / f"{path.stem.rpartition('.')[0]}.py").relative_to(image / LIB).as_posix()
        for path in (image / LIB).rglob("*.pyc")
    }
    # What does not compile is left out, as compileall does.
    assert compiled <= names and len(names - compiled) < 20
    assert "json/decoder.py" in compiled
    # PEP 552: by hash, and so whatever time the source has.
    assert all(path.read_bytes()[4] & 1 for path in (image / LIB).rglob("*.pyc"))


def test_nothing_of_the_machine_that_packed_it(tmp_path: Path) -> None:
    rows = rows_of(source(tmp_path, standalone.made_up(), pyc=OURS).entries())
    assert {(uid, gid) for *_, uid, gid in rows} == {(0, 0)}
    assert {mode for _, mode, kind, *_ in rows if kind == "file"} == {0o644, 0o755}
    assert [path for path, *_ in rows[:2]] == ["opt", "opt/env"]
    assert all(path.startswith("opt/env/") for path, *_ in rows[2:])


def test_its_library_is_where_the_loader_looks(tmp_path: Path) -> None:
    """The program does not load it, and wheels such as torchcodec's need it."""
    name = f"libpython{SERIES}.so.1.0"
    made = source(tmp_path, {**standalone.made_up(), f"python/lib/{name}": b"\x7fELF"})
    (tmp_path / "image").mkdir()
    found = lay_out(made.entries(), tmp_path / "image")
    assert (found / "usr/lib" / name).readlink() == Path("/", PREFIX, "lib", name)
    assert not [each for each in made.owned() if each.path.startswith("usr/")]


def test_keys_tell_apart_what_differs(tmp_path: Path) -> None:
    files = standalone.made_up()
    plain = source(tmp_path, files)
    assert plain.key == source(tmp_path, files, "torch", "numpy").key
    assert len({plain.key, source(tmp_path, files, "pip").key, source(tmp_path, files, pyc=OURS).key}) == 3
    assert plain.key != source(tmp_path, {**files, "python/more": b""}).key


def test_without_bytecode_there_is_none(tmp_path: Path) -> None:
    paths = {path for path, *_ in rows_of(source(tmp_path, standalone.made_up()).entries())}
    assert not any("__pycache__" in path for path in paths)
    assert f"{LIB}/test/bad.py" in paths


def test_the_archives_own_bytecode_is_replaced(tmp_path: Path) -> None:
    place = OURS.path_of(f"{LIB}/os.py")
    (found,) = (each for each in source(tmp_path, standalone.made_up(), pyc=OURS).entries() if each.path == place)
    assert content(found).startswith(importlib.util.MAGIC_NUMBER)


def test_its_names_are_there(tmp_path: Path) -> None:
    links = {e.path: e.target for e in source(tmp_path, standalone.made_up()).entries() if e.kind is EntryKind.SYMLINK}
    assert links == {f"{PREFIX}/bin/python3": f"python{SERIES}", f"{PREFIX}/bin/python": f"python{SERIES}"}


def test_a_locked_distribution_takes_the_place_of_a_bundled_one(tmp_path: Path) -> None:
    kept = {path for path, *_ in rows_of(source(tmp_path, standalone.made_up(), "setuptools", "numpy").entries())}
    assert f"{PREFIX}/bin/pip" in kept and f"{LIB}/site-packages/pip/__init__.py" in kept
    gone = {path for path, *_ in rows_of(source(tmp_path, standalone.made_up(), "pip").entries())}
    assert not any("pip" in path for path in gone)


def test_a_distribution_that_nobody_expects(tmp_path: Path) -> None:
    files = {**standalone.made_up(), **standalone.distribution("numpy", "2.0", {"numpy/__init__.py": b""}, "f2py")}
    assert source(tmp_path, files, "pip").owned()
    with pytest.raises(BadPython, match="it contains numpy, which is in the lock too"):
        list(source(tmp_path, files, "numpy").entries())


def test_what_it_owns_is_what_it_holds_but_for_bytecode(tmp_path: Path) -> None:
    made = source(tmp_path, standalone.made_up(), "pip", pyc=OURS)
    paths = {path for path, _, kind, *_ in rows_of(made.entries()) if kind != "folder" and "__pycache__" not in path}
    note = f"{LIB}/site-packages/README.txt"
    assert note in paths
    assert {each.path for each in made.owned()} == paths - {note}


def test_hard_links_stay(tmp_path: Path) -> None:
    files = {**standalone.made_up(), "python/lib/copy.py": Link(f"python/lib/python{SERIES}/os.py", is_hard=True)}
    (found,) = (each for each in source(tmp_path, files).entries() if each.path == f"{PREFIX}/lib/copy.py")
    assert (found.kind, found.target) == (EntryKind.HARDLINK, f"{LIB}/os.py")


@pytest.mark.parametrize(
    ("name", "what", "why"),
    [
        ("python/../../etc/passwd", b"x", "'python/../../etc/passwd' is in it"),
        ("/etc/passwd", b"x", "'/etc/passwd' is in it"),
        ("usr/bin/env", b"x", "'usr/bin/env' is in it"),
        ("python", b"x", "'python' is in it"),
        ("python//twice", b"x", "is in it"),
        ("python\\..\\x", b"x", "is in it"),
        ("python/lib/out", Link("/etc/passwd"), "the link 'python/lib/out' leads to '/etc/passwd'"),
        ("python/lib/out", Link("../../etc"), "the link 'python/lib/out' leads to '../../etc'"),
        ("python/out", Link(".."), "the link 'python/out' leads to '..'"),
        ("python/out", Link("/etc/passwd", is_hard=True), "leads to '/etc/passwd'"),
        ("python/out", Link("python/../x", is_hard=True), "leads to 'python/../x'"),
        ("python/out", Link("python/later", is_hard=True), "which is not before it"),
        ("python/dev", Device(), "'python/dev' is not a file, folder or link"),
        ("python/bin/python3/x", b"x", "'python/bin/python3/x' is behind a link of it"),
    ],
)
def test_what_leads_out_is_refused(name: str, what: Content, why: str, tmp_path: Path) -> None:
    made = source(tmp_path, {**standalone.made_up(), name: what})
    with pytest.raises(BadPython) as caught:
        list(made.entries())
    assert why in caught.value.message and caught.value.exit_code == 5 and caught.value.hint


def test_a_path_twice(tmp_path: Path) -> None:
    members = [*standalone.made_up().items(), (f"python/lib/python{SERIES}/os.py", b"another")]
    sha256 = standalone.write_members(tmp_path / "x.tar.gz", members)
    with pytest.raises(BadPython, match="is in it twice"):
        list(StandalonePython(tmp_path / "x.tar.gz", sha256, VERSION, frozenset(), None).entries())


def test_another_python(tmp_path: Path) -> None:
    sha256 = standalone.write(tmp_path / "x.tar.gz", standalone.made_up())
    with pytest.raises(BadPython, match=r"it is not Python 3\.7"):
        list(StandalonePython(tmp_path / "x.tar.gz", sha256, "3.7.1", frozenset(), None).entries())


@pytest.mark.parametrize("damage", [b"not a tar", b""])
def test_a_damaged_archive(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(damage)
    with pytest.raises(BadPython, match="can't be unpacked"):
        list(StandalonePython(tmp_path / "x.tar.gz", "0" * 64, VERSION, frozenset(), None).entries())
    whole = standalone.made_up()
    standalone.write(tmp_path / "x.tar.gz", whole)
    (tmp_path / "x.tar.gz").write_bytes((tmp_path / "x.tar.gz").read_bytes()[:-200])
    with pytest.raises(BadPython, match="can't be unpacked"):
        list(StandalonePython(tmp_path / "x.tar.gz", "0" * 64, VERSION, frozenset(), None).entries())


# A venv


def test_a_venv_finds_its_python(tmp_path: Path) -> None:
    made = Venv(Python(VERSION, "system"), str(Path(sys.base_prefix, "bin")))
    lay_out(made.entries(), tmp_path)
    code = "import sys, site; print(sys.prefix, sys.base_prefix, *site.getsitepackages())"
    done = subprocess.run(
        [str(tmp_path / PREFIX / "bin/python"), "-c", code], capture_output=True, text=True, check=True, env={}
    )
    prefix = tmp_path / PREFIX
    expected = [str(prefix), sys.base_prefix, str(prefix / f"lib/python{SERIES}/site-packages")]
    assert done.stdout.split()[:3] == expected


def test_a_venv_is_the_same_everywhere() -> None:
    made = Venv(Python("3.11.2", "system"))
    assert rows_of(made.entries()) == rows_of(Venv(Python("3.11.2", "system")).entries())
    assert made.key != Venv(Python("3.11.3", "system")).key
    assert made.key != Venv(Python("3.11.2", "base"), "/usr/local/bin").key
