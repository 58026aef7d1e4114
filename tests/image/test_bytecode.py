"""Bytecode: the same from each process in any order, and modules that do not compile."""

from __future__ import annotations

import importlib.util
import os
import random
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from envspec.errors import UnfitMachine
from envspec.image.layers.threads import Cancelled
from envspec.image.sources.bytecode import CompilerFailed, PycCompiler, SourceModule, compile_modules
from tests.support.machines import interpreters
from tests.support.waits import wait_for

_OWN = PycCompiler(Path(sys.executable), ".".join(map(str, sys.version_info[:3])))

_SERIES = ".".join(map(str, sys.version_info[:2]))

#: Names and strings that a process meets again in other modules, and sets whose order follows from hashes.
_SOURCES = [
    f"""
from a{n % 3} import b, c{n % 5} as d
def function_{n}(self, name, value=None, *arguments, key_{n % 4}='shared text {n % 2}', **rest):
    'Documentation that all of them share.'
    if name in {{'alpha', 'beta', 'gamma', {n}, 2.5, b'delta'}}:
        return [name for name in value if name.__class__ is not None]
    return lambda self=self: (self, name, {{'alpha': value}}, 'shared text 1')
class Class_{n % 6}(Exception):
    name: str = 'alpha'
    def __init__(self, value): super().__init__(value, self.name)
""".encode()
    for n in range(60)
]


def _modules(sources: list[bytes]) -> list[SourceModule]:
    return [SourceModule(f"opt/env/m{n}.py", len(each), partial(bytes, each)) for n, each in enumerate(sources)]


def python_of(series: str) -> PycCompiler:
    """A CPython of this series: the running one, or what PATH or pyenv has."""
    if series == _SERIES:
        return _OWN
    for version, python in interpreters(series).items():
        return PycCompiler(python, version)
    pytest.skip(f"no Python {series} is at hand, neither pyenv's nor on PATH")


@pytest.mark.parametrize("series", sorted({_SERIES, "3.10", "3.11", "3.12", "3.13"}))
def test_neither_order_nor_company_nor_jobs_matter(series: str) -> None:
    pyc = python_of(series)
    modules = _modules(_SOURCES)
    first = dict(zip([module.path for module in modules], compile_modules(pyc, modules), strict=True))
    assert all(first.values())
    shuffled = random.Random(7).sample(modules, 30)
    several = PycCompiler(pyc.python, pyc.version, jobs=3)
    large = [SourceModule(module.path, 10 << 20, module.read) for module in shuffled]
    for again in (compile_modules(pyc, shuffled), compile_modules(several, large)):
        assert dict(zip([module.path for module in shuffled], again, strict=True)) == {
            module.path: first[module.path] for module in shuffled
        }


@pytest.mark.parametrize("series", sorted({_SERIES, "3.10", "3.11", "3.12", "3.13"}))
def test_equal_sets_of_strings_that_no_other_module_has(series: str) -> None:
    """CPython makes a new set of strings that it interns, and keeps one set of strings that it has interned."""
    words = "'225', '2 26', ('4x26', 'q')"
    one = f"def a(x):\n    return x in {{{words}}}\n\ndef b(x, y={{{words}}}):\n    return x in {{{words}}}\n".encode()
    pyc = python_of(series)
    *_, alone = compile_modules(pyc, _modules([b"", one]))
    *_, after = compile_modules(pyc, _modules([f"x = [{words}]\n".encode(), one]))
    assert alone
    assert after == alone


def test_it_is_bound_to_its_source_and_checked_against_it() -> None:
    (made,) = compile_modules(_OWN, _modules([b"answer = 42\n"]))
    assert made[:4] == importlib.util.MAGIC_NUMBER
    assert made[4:8] == b"\3\0\0\0"
    assert made[8:16] == importlib.util.source_hash(b"answer = 42\n")


def test_python_takes_it_and_runs_what_was_patched(tmp_path: Path) -> None:
    source = b"import sys\nanswer = 42\nfile = sys._getframe().f_code.co_filename\n"
    (made,) = compile_modules(_OWN, [SourceModule("opt/env/lib/m.py", len(source), lambda: source)])
    cached = tmp_path / _OWN.path_of("m.py")
    cached.parent.mkdir()
    cached.write_bytes(made)
    module = tmp_path / "m.py"
    module.write_bytes(source)
    ask = [sys.executable, "-B", "-c", "import m; print(m.__cached__, m.answer)"]

    def run() -> list[str]:
        done = subprocess.run(ask, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.split()

    assert run() == [str(cached), "42"]
    before = module.stat()
    module.write_bytes(source.replace(b"42", b"43"))
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run()[1] == "43"
    cached.write_bytes(made.replace(b"answer", b"amswer"))
    module.write_bytes(source)
    with pytest.raises(subprocess.CalledProcessError):
        run()  # what is run is the bytecode, and not compiled again


def test_modules_that_do_not_compile_are_left_out() -> None:
    sources = [
        b"fine = 1\n",
        b"def broken(:\n",
        b"\0",
        b"# coding: no-such-coding\n",
        b"'\xff'\n",
        b"# coding: latin-1\nname = '\xff'\n",
        b"\xef\xbb\xbfbom = 1\n",
        b"'\\d' is 1\n",
        b"",
    ]
    made = list(compile_modules(_OWN, _modules(sources)))
    assert [bool(each) for each in made] == [True, False, False, False, False, True, True, True, True]


def test_before_3_11_a_set_in_the_order_of_addresses_is_left_out() -> None:
    pyc = python_of("3.10")
    sources = [
        b"x in {None, 'a'}\n",
        b"def f(a, b=1): return a in {'x', (1, ...)}\n",
        b"x in {1, 'a'}\n",
        b"x in (None, 1)\n",
    ]
    assert [bool(each) for each in compile_modules(pyc, _modules(sources))] == [False, False, True, True]


def test_places_and_keys() -> None:
    pyc = PycCompiler(Path("/anywhere/python"), "3.11.16", 4)
    assert pyc.path_of("opt/env/a/b.c.py") == "opt/env/a/__pycache__/b.c.cpython-311.pyc"
    assert pyc.key == PycCompiler(Path("/elsewhere"), "3.11.16").key != PycCompiler(Path("/elsewhere"), "3.11.15").key
    assert pyc == PycCompiler(Path("/elsewhere"), "3.11.16")


def test_a_python_of_another_series_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitMachine, match=r"is Python .* the image has 3\.2\.1"):
        list(compile_modules(PycCompiler(Path(sys.executable), "3.2.1"), _modules([b""])))
    with pytest.raises(UnfitMachine, match=r"missing can't be started .*No such file"):
        list(compile_modules(PycCompiler(tmp_path / "missing", "3.11.1"), _modules([b""])))


def test_a_process_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    script = tmp_path / "python"
    tag = sys.implementation.cache_tag
    code = f"import sys,os; a=b'9.9.9 {tag}'; os.write(1, len(a).to_bytes(4, 'little')+a); sys.exit('no memory')"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}"\n')
    script.chmod(stat.S_IRWXU)
    with pytest.raises(CompilerFailed, match=r"ended with status 1 at opt/env/m0\.py: no memory"):
        list(compile_modules(PycCompiler(script, _OWN.version), _modules([b"a = 1\n"])))


def test_a_fault_of_the_reader_ends_the_processes() -> None:
    def broken() -> bytes:
        raise OSError(5, "no such sector")

    with pytest.raises(OSError, match="no such sector"):
        list(compile_modules(_OWN, [*_modules([b"a = 1\n"]), SourceModule("opt/env/x.py", 3, broken)]))


def test_ending_early_ends_the_processes() -> None:
    some = compile_modules(_OWN, _modules(_SOURCES * 10))
    assert next(some)
    some.close()
    with pytest.raises(StopIteration):
        next(some)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_ending_early_does_not_wait_for_a_module(is_cancelled: bool, tmp_path: Path) -> None:
    script, started = tmp_path / "python", tmp_path / "started"
    script.write_text(f"""#!{sys.executable}
import os, time
from pathlib import Path
answer = b"9.9.9 {sys.implementation.cache_tag}"
os.write(1, len(answer).to_bytes(4, "little") + answer + bytes(4))
Path({str(started)!r}).touch()
time.sleep(60)
""")
    script.chmod(stat.S_IRWXU)
    pyc = PycCompiler(script, _OWN.version)
    some = compile_modules(pyc, _modules([b"a = 1\n"] * 300))
    begin = time.monotonic()
    assert next(some) == b""
    wait_for(started.exists)
    if is_cancelled:
        threading.Timer(0.1, pyc.cancel.set).start()
        with pytest.raises(Cancelled):
            next(some)
    else:
        some.close()
    assert time.monotonic() - begin < 20
