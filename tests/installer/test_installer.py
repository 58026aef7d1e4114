"""The pieces of an installation that decide: what a machine lacks, whose a file is, what names the place it is in."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from envspec.errors import UnfitMachine
from envspec.fetch.types import is_transient, rattler_error
from envspec.installer import conda, staging
from envspec.installer.request import HostFacts, check_machine, glibc_of, resolution_for, x86_levels
from envspec.installer.staging import NotMovable, relocate
from envspec.installer.uv import error_of
from envspec.io import process as io_process
from envspec.io.archives import FileConflict
from envspec.io.process import Finished
from envspec.models import CondaPackage, Platform
from tests.support.builders.environments import make_lock
from tests.support.builders.locks import package, wheel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="envspec installs on Linux and macOS only")


# This machine


@pytest.mark.parametrize(
    ("tag", "level"),
    [
        ("py3-none-any", None),
        ("cp311-cp311-manylinux_2_28_x86_64", (2, 28)),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", (2, 17)),
        ("cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64", (2, 27)),
        ("cp311-cp311-manylinux2010_x86_64", (2, 12)),
        ("cp311-cp311-manylinux1_x86_64", (2, 5)),
        ("cp311-cp311-linux_x86_64", None),
        ("cp311-cp311-macosx_11_0_arm64", None),
    ],
)
def test_the_oldest_glibc_of_a_wheel(tag: str, level: tuple[int, int] | None) -> None:
    assert glibc_of(f"some_thing-1.0-{tag}.whl") == level
    assert glibc_of(f"some_thing-1.0-{tag}.tar.gz") is None


_V2 = frozenset(["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
_V3 = _V2 | frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])


@pytest.mark.parametrize(
    ("flags", "newest"),
    [
        (frozenset(), "x86_64"),
        (_V2, "x86_64_v2"),
        (_V3, "x86_64_v3"),
        (_V3 - {"popcnt"}, "x86_64"),
        (_V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]), "x86_64_v4"),
    ],
)
def test_levels_of_a_processor(flags: frozenset[str], newest: str) -> None:
    assert max(x86_levels(flags)) == newest


def host(**others: object) -> HostFacts:
    fields: dict[str, object] = {
        "platform": Platform.LINUX_64,
        "glibc": (2, 36),
        "virtual": {"__glibc": "2.36", "__linux": "6.1", "__unix": "0", "__archspec": "1"},
        "cpus": frozenset({"zen3", "x86_64", "x86_64_v2", "x86_64_v3"}),
    }
    return HostFacts(**{**fields, **others})  # type: ignore[arg-type]


def row(name: str, *depends: str) -> CondaPackage:
    return CondaPackage(
        name, "1.0", "0", 0, "c", "linux-64", f"{name}.conda", f"https://x/{name}", "0" * 64, depends=depends
    )


def lacks(*conda: CondaPackage, of: HostFacts | None = None) -> str:
    try:
        check_machine(make_lock(conda=conda, where=Platform.LINUX_64).resolutions[0], of or host())
    except UnfitMachine as error:
        return error.message
    return ""


@pytest.mark.parametrize(
    "depends",
    [
        *("__glibc >=2.17,<3.0.a0", "__unix", "__linux >=5.10", "__archspec 1 x86_64_v3", "__archspec 1.* zen3"),
        *("__cuda >=12", "__cuda_arch >=9", "numpy >=2"),
    ],
)
def test_what_this_machine_has(depends: str) -> None:
    assert lacks(row("some", depends)) == ""


@pytest.mark.parametrize(
    ("depends", "why"),
    [
        ("__glibc >=2.40", "some 1.0 needs __glibc >=2.40, it has 2.36"),
        ("__archspec 1 x86_64_v4", "some 1.0 needs __archspec 1 x86_64_v4, it is x86_64, x86_64_v2, x86_64_v3, zen3"),
        ("__osx >=11", "some 1.0 needs __osx >=11, which it does not have"),
        ("__linux >=6.8", "some 1.0 needs __linux >=6.8, it has 6.1"),
    ],
)
def test_what_this_machine_lacks(depends: str, why: str) -> None:
    assert lacks(row("some", depends)) == f"this machine can't run the lock: {why}"


def test_who_asks_is_named_and_counted() -> None:
    shown = lacks(*(row(name, "__glibc >=2.99") for name in ("d", "b", "c", "a")))
    assert "a 1.0, b 1.0 and 2 more need __glibc >=2.99" in shown


def test_a_wheel_without_glibc() -> None:
    pin = package("late", "1.0", file=wheel("late", "1.0", tag="py3-none-manylinux_2_28_x86_64"))
    resolution = make_lock(wheels=[pin], where=Platform.LINUX_64).resolutions[0]
    check_machine(resolution, host())
    with pytest.raises(UnfitMachine, match=r"late 1.0 needs glibc 2.28, it has another C library"):
        check_machine(resolution, host(glibc=None))


def test_a_lock_for_nobody() -> None:
    lock = make_lock(where=Platform.LINUX_64)
    assert resolution_for(lock, Platform.LINUX_64, None) is lock.resolutions[0]
    assert resolution_for(lock, Platform.LINUX_64, Platform.LINUX_64) is lock.resolutions[0]
    with pytest.raises(UnfitMachine, match=r"small is locked for linux-64, and this machine is osx-arm64"):
        resolution_for(lock, Platform.OSX_ARM64, None)


# The place


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = staging.staging_path(tmp_path / "env")
    (made / "bin").mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#!{site}/bin/python\n", "#!{prefix}/bin/python\n"),
        ("'''exec' '{site}/bin/python' \"$0\"\n", "'''exec' '{prefix}/bin/python' \"$0\"\n"),
        ("VIRTUAL_ENV='{site}'\nPATH={site}/bin\n", "VIRTUAL_ENV='{prefix}'\nPATH={prefix}/bin\n"),
        ("/a/.it'\\''s.envspec-partial/bin", "/a/it'\\''s/bin"),
        ("nothing of it\n", "nothing of it\n"),
    ],
)
def test_texts_name_the_environment(site: Path, before: str, after: str) -> None:
    names = {"site": str(site), "prefix": str(site.with_name("env"))}
    script = site / "bin" / "script"
    script.write_text(before.format(**names))
    script.chmod(0o755)
    changed = relocate(site)
    assert script.read_text() == after.format(**names)
    assert script.stat().st_mode & 0o777 == 0o755
    assert changed == ((script,) if before != after else ())


def test_a_hard_link_into_a_cache_is_not_written_to(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text(f"#!{site}/bin/python\n")
    os.link(kept, site / "bin" / "script")
    relocate(site)
    assert kept.read_text() == f"#!{site}/bin/python\n"
    assert (site / "bin" / "script").read_text() == f"#!{site.with_name('env')}/bin/python\n"


def test_links_into_the_site_become_relative_and_others_stay(site: Path) -> None:
    (site / "bin" / "python").symlink_to(site / "lib" / "python")
    (site / "bin" / "other").symlink_to("/usr/bin/env")
    relocate(site)
    assert str((site / "bin" / "python").readlink()) == "../lib/python"
    assert str((site / "bin" / "other").readlink()) == "/usr/bin/env"


def test_a_program_that_names_the_site_is_refused(site: Path) -> None:
    (site / "bin" / "tool").write_bytes(b"\x7fELF\0" + os.fsencode(site) + b"\0")
    with pytest.raises(NotMovable, match=r"bin/tool is binary and contains the folder"):
        relocate(site)


def hashed(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"


def wheel_of(site: Path, name: str, files: dict[str, bytes]) -> Path:
    """An installed wheel's files, below site-packages, and its RECORD."""
    packages = site / "lib/python3.11/site-packages"
    info = packages / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    rows = []
    for path, data in files.items():
        file = packages / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        rows.append(f"{path},{hashed(data)}")
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join([*rows, f"{name}-1.0.dist-info/RECORD,,", ""]))
    return info / "RECORD"


def test_records_say_what_the_scripts_have_become(site: Path) -> None:
    script = f"#!{site}/bin/python\n".encode()
    path = wheel_of(site, "tool", {"../../../bin/tool": script, "tool.py": b"1", "a, b.py": b"2"})
    path.write_text(path.read_text().replace("a, b.py", '"a, b.py"'))
    relocate(site)
    lines = path.read_text().splitlines()
    assert lines[0] == f"../../../bin/tool,{hashed((site / 'bin/tool').read_bytes())}"
    assert lines[1:] == [f"tool.py,{hashed(b'1')}", f'"a, b.py",{hashed(b"2")}', "tool-1.0.dist-info/RECORD,,"]


# Owners


def conda_of(site: Path, name: str, files: dict[str, bytes]) -> None:
    """A linked conda package."""
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    (site / "conda-meta").mkdir(exist_ok=True)
    meta = {"name": name, "version": "2.0", "files": list(files)}
    (site / f"conda-meta/{name}-2.0-0.json").write_text(json.dumps(meta))


def checker(site: Path) -> Callable[[], None]:
    """Checks the owners of files, with those that are here now as those before wheels."""
    files = conda.files_before(site)
    return partial(conda.check_ownership, site, files, conda.file_states(site, files))


def test_nobody_owns_a_file_twice(site: Path) -> None:
    conda_of(site, "numpy", {"lib/python3.11/site-packages/numpy.py": b"conda's"})
    check = checker(site)
    wheel_of(site, "one", {"one.py": b"1", "shared.py": b""})
    wheel_of(site, "two", {"two.py": b"2", "shared.py": b""})
    check()
    wheel_of(site, "three", {"one.py": b"3"})
    with pytest.raises(FileConflict, match=r"one.py belongs to the wheel one 1.0 and to the wheel three 1.0"):
        check()


def test_a_file_of_condas_in_a_wheel(site: Path) -> None:
    conda_of(site, "numpy", {"bin/f2py": b"conda's"})
    check = checker(site)
    wheel_of(site, "greedy", {"../../../bin/f2py": b"conda's"})
    with pytest.raises(conda.OwnershipError, match=r"bin/f2py belongs to conda's numpy 2.0 and to the wheel greedy"):
        check()


@pytest.mark.parametrize("harm", ["changed", "replaced", "removed"])
def test_a_file_of_condas_that_was_touched(site: Path, harm: str) -> None:
    conda_of(site, "numpy", {"lib/numpy.so": b"conda's"})
    check = checker(site)
    file = site / "lib/numpy.so"
    if harm == "removed":
        file.unlink()
    elif harm == "changed":
        file.write_bytes(b"a wheel's")
    else:
        (site / "new").write_bytes(b"conda's")
        (site / "new").replace(file)
    with pytest.raises(conda.FileChanged, match=r"lib/numpy.so of conda's numpy 2.0 was changed"):
        check()


def test_a_distribution_of_condas_is_no_wheel(site: Path) -> None:
    wheel_of(site, "numpy", {"numpy.py": b"1"})
    packages = "lib/python3.11/site-packages"
    held = ["numpy.py", "numpy-1.0.dist-info/METADATA", "numpy-1.0.dist-info/RECORD"]
    conda_of(site, "numpy", {f"{packages}/{path}": (site / packages / path).read_bytes() for path in held})
    checker(site)()


# The folder


def test_what_is_found_in_a_folder(tmp_path: Path) -> None:
    env = tmp_path / "env"
    wanted = {"name": "a", "platform": "linux-64", "lock_sha256": "1", "prefix": str(env)}
    assert not staging.is_installed(env, wanted)
    env.mkdir()
    assert not staging.is_installed(env, wanted)
    staging.write_record(env, wanted)
    assert staging.is_installed(env, wanted)
    with pytest.raises(staging.PrefixOccupied, match=r"the environment of another lock \(a\)"):
        staging.is_installed(env, {**wanted, "lock_sha256": "2"})
    with pytest.raises(staging.PrefixOccupied, match=r"the environment for linux-64"):
        staging.is_installed(env, {**wanted, "platform": "linux-aarch64"})


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_record_that_can_not_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".envspec").mkdir()
    (tmp_path / ".envspec/installed.json").write_text(text)
    assert staging.read_record(tmp_path) is None


def test_what_was_built_is_there_or_nothing_is(tmp_path: Path) -> None:
    prefix = tmp_path / "deep" / "env"
    with staging.staging(prefix, lambda: None) as site:
        (site.path / "file").write_text("1")
        assert site.path == prefix.with_name(".env.envspec-partial")
        site.finish()
    assert [path.name for path in prefix.parent.iterdir()] == ["env"]
    with pytest.raises(KeyboardInterrupt), staging.staging(tmp_path / "other", lambda: None) as site:
        closed = site.path / "closed"
        closed.mkdir()
        (closed / "file").write_text("1")
        closed.chmod(0o500)
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep"]
    with pytest.raises(KeyboardInterrupt), staging.staging(tmp_path / "a" / "b" / "env", lambda: None):
        raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep"]


def test_the_current_directory_is_not_pulled_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(staging.CannotCreate, match=r"is the current directory"):
        staging.is_installed(tmp_path, {})


def test_what_a_killed_run_left_is_removed_first(tmp_path: Path) -> None:
    left = staging.staging_path(tmp_path / "env")
    (left / "lib").mkdir(parents=True)
    (left / "lib" / "half").write_text("1")
    with staging.staging(tmp_path / "env", lambda: None) as site:
        assert list(site.path.iterdir()) == []


def test_something_that_came_meanwhile_stays(tmp_path: Path) -> None:
    with (
        pytest.raises(staging.PrefixOccupied, match=r"no longer empty"),
        staging.staging(tmp_path / "env", lambda: None) as site,
    ):
        (tmp_path / "env").mkdir()
        (tmp_path / "env" / "mine").write_text("1")
        site.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["env"]


def test_a_link_in_the_place_of_the_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "mine").write_text("1")
    staging.staging_path(tmp_path / "env").symlink_to(tmp_path / "precious")
    with pytest.raises(staging.CannotCreate), staging.staging(tmp_path / "env", lambda: None):
        raise AssertionError("nothing may be built there")
    assert (tmp_path / "precious" / "mine").exists()


# Faults


@pytest.mark.parametrize(
    ("text", "words", "passes"),
    [
        ("HTTP status client error (404 Not Found) for url (http://x/t/TOKEN/y)", "HTTP 404 (not found)", False),
        ("HTTP status server error (500 Internal Server Error) for url (http://x/y)", "HTTP 500", True),
        ("error decoding response body", "ended early", True),
        ("error sending request for url (http://x/t/TOKEN/y)", "no connection", True),
        ("builder error for url (nosuch://x)", "can't be fetched from", False),
    ],
)
def test_rattlers_words(text: str, words: str, passes: bool) -> None:
    shown = rattler_error("https://me:secret@example.org/c/noarch/a.conda", RuntimeError(text))
    assert words in shown.message and "https://example.org/c/noarch/a.conda" in shown.message
    assert "TOKEN" not in str(shown) and "secret" not in str(shown)
    assert is_transient(shown) is passes


_DOWNLOAD = "Resolved 1 package in 3ms\nerror: Failed to download `other==1.0`\n"
_FETCH = f"{_DOWNLOAD}  cause: Failed to fetch: "
_BECAUSE = "error: No solution found when resolving dependencies\n  cause: Because "
_AND = " and you require other==2.0, we can conclude that your requirements are unsatisfiable.\n"


@pytest.mark.parametrize(
    ("stderr", "code", "words"),
    [
        (
            f"{_FETCH}https://me:secret@example.org/other.whl\n"
            "  cause: HTTP status client error (404 Not Found) for url (https://me:secret@example.org/other.whl)\n",
            5,
            "other 1.0: https://example.org/other.whl: HTTP 404 (not found)",
        ),
        (
            f"{_FETCH}`https://example.org/other.whl`\n  cause: operation timed out\n",
            5,
            "other 1.0: https://example.org/other.whl: the server stalled",
        ),
        (
            f"{_DOWNLOAD}  cause: Hash mismatch for `other==1.0`\n\n         Expected:\n           sha256:aa\n\n"
            "         Computed:\n           sha256:bb\n",
            5,
            "other 1.0: the index's file is not the locked one: SHA-256 bb, locked aa",
        ),
        (f"{_BECAUSE}there is no version of other==2.0{_AND}", 5, "other 2.0: the index does not have that version"),
        (f"{_BECAUSE}other was not found in the cache{_AND}", 5, "--offline forbids fetching it"),
        (f"{_DOWNLOAD}  cause: failed to write: No space left on device (os error 28)\n", 6, "no space left"),
        ("error: something new\n  cause: at http://me:secret@example.org/x\n", 1, "new: at http://example.org/x"),
        ("", 1, "it exited with status 2"),
    ],
)
def test_uvs_words(stderr: str, code: int, words: str) -> None:
    shown = error_of(Finished(2, "", stderr))
    assert shown.exit_code == code and words in shown.message and shown.hint
    assert "secret" not in str(shown)


def bound(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(io_process.__file__), sys.executable, "-c", code]


def test_a_process_bound_to_its_parent_ends_when_its_stdin_does() -> None:
    command = bound("import time; print('on', flush=True); time.sleep(60)")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.stdin.close()
        # Its stdout ends when the last of both has.
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 137


@pytest.mark.parametrize("status", [0, 3])
def test_its_status_is_passed_on(status: int) -> None:
    with subprocess.Popen(bound(f"raise SystemExit({status})"), stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=30) == status
