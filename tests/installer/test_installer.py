"""The pieces of an installation that decide: what a machine lacks, whose a file is, what names the place it is in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from envspec.context import Context
from envspec.errors import EnvspecError, NoSolution, UnfitMachine, UsageError
from envspec.fetch.types import is_transient, rattler_error
from envspec.installer import conda, staging
from envspec.installer.request import HostFacts, check_machine, x86_levels
from envspec.installer.staging import relocate
from envspec.installer.uv import environ, error_of
from envspec.io import process as io_process
from envspec.io.process import Finished
from envspec.models import CondaPackage, Platform
from envspec.spec.targets import glibc_of
from envspec.structs import replace
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


HOST = HostFacts(
    Platform.LINUX_64,
    (2, 36),
    {"__glibc": "2.36", "__linux": "6.1", "__unix": "0", "__archspec": "1"},
    frozenset({"zen3", "x86_64", "x86_64_v2", "x86_64_v3"}),
)


def row(name: str, *depends: str) -> CondaPackage:
    return CondaPackage(
        name, "1.0", "0", 0, "c", "linux-64", f"{name}.conda", f"https://x/{name}", "0" * 64, depends=depends
    )


HAS = ("__glibc >=2.17,<3.0.a0", "__unix", "__linux >=5.10", "__archspec 1 x86_64_v3", "__archspec 1.* zen3")


@pytest.mark.parametrize(
    ("names", "depends", "why"),
    [
        *(("a", depends, "") for depends in (*HAS, "__cuda >=12", "__cuda_arch >=9", "numpy >=2")),
        ("a", "__glibc >=2.40", "a 1.0 needs __glibc >=2.40, it has 2.36"),
        ("a", "__archspec 1 x86_64_v4", "a 1.0 needs __archspec 1 x86_64_v4, it is x86_64, x86_64_v2, x86_64_v3, zen3"),
        ("a", "__osx >=11", "a 1.0 needs __osx >=11, which it does not have"),
        ("a", "__linux >=6.8", "a 1.0 needs __linux >=6.8, it has 6.1"),
        ("dbca", "__glibc >=2.99", "a 1.0, b 1.0 and 2 more need __glibc >=2.99, it has 2.36"),
    ],
)
def test_what_this_machine_lacks(names: str, depends: str, why: str) -> None:
    resolution = make_lock(conda=[row(name, depends) for name in names], where=Platform.LINUX_64).resolutions[0]
    with pytest.raises(UnfitMachine) if why else nullcontext() as refused:
        check_machine(resolution, HOST)
    assert not refused or refused.value.message == f"this machine can't run the lock: {why}"


def test_a_wheel_without_glibc() -> None:
    pin = package("late", "1.0", file=wheel("late", "1.0", tag="py3-none-manylinux_2_28_x86_64"))
    resolution = make_lock(wheels=[pin], where=Platform.LINUX_64).resolutions[0]
    check_machine(resolution, HOST)
    with pytest.raises(UnfitMachine, match=r"late 1.0 needs glibc 2.28, it has another C library"):
        check_machine(resolution, replace(HOST, glibc=None))


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
    with pytest.raises(EnvspecError, match=r"bin/tool is binary and contains the folder"):
        relocate(site)


# Owners


@pytest.mark.parametrize("harm", ["changed", "replaced", "removed"])
def test_a_file_of_condas_that_was_touched(site: Path, harm: str) -> None:
    file = site / "lib/numpy.so"
    file.parent.mkdir()
    file.write_bytes(b"conda's")
    (site / "conda-meta").mkdir()
    meta = {"name": "numpy", "version": "2.0", "files": ["lib/numpy.so"]}
    (site / "conda-meta/numpy-2.0-0.json").write_text(json.dumps(meta))
    files = conda.files_before(site)
    states = conda.file_states(site, files)
    if harm == "removed":
        file.unlink()
    elif harm == "changed":
        file.write_bytes(b"a wheel's")
    else:
        (site / "new").write_bytes(b"conda's")
        (site / "new").replace(file)
    with pytest.raises(NoSolution, match=r"lib/numpy.so of conda's numpy 2.0 was changed"):
        conda.check_ownership(site, files, states, {})


# The folder


def test_an_environment_for_another_platform(tmp_path: Path) -> None:
    wanted = {"name": "a", "platform": "linux-64", "lock_sha256": "1", "prefix": str(tmp_path)}
    staging.write_record(tmp_path, wanted)
    with pytest.raises(UsageError, match=r"the environment for linux-64"):
        staging.is_installed(tmp_path, {**wanted, "platform": "linux-aarch64"})


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_a_record_that_can_not_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".envspec").mkdir()
    (tmp_path / ".envspec/installed.json").write_text(text)
    assert staging.read_record(tmp_path) is None


def test_of_what_was_interrupted_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), staging.staging(tmp_path / "a" / "b" / "env", lambda: None) as site:
        closed = site.path / "closed"
        closed.mkdir()
        (closed / "file").write_text("1")
        closed.chmod(0o500)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_current_directory_is_not_pulled_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"is the current directory"):
        staging.is_installed(tmp_path, {})


def test_something_that_came_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no longer empty"), staging.staging(tmp_path / "env", lambda: None) as site:
        (tmp_path / "env").mkdir()
        (tmp_path / "env" / "mine").write_text("1")
        site.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["env"]


def test_a_link_in_the_place_of_the_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "mine").write_text("1")
    staging.staging_path(tmp_path / "env").symlink_to(tmp_path / "precious")
    with pytest.raises(UsageError), staging.staging(tmp_path / "env", lambda: None):
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


def test_uv_trusts_the_certificates_that_envspec_trusts(tmp_path: Path) -> None:
    """The system's, or a bundle's; uv's own list lacks a company's."""
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    for variables, expected in ({}, None), ({"REQUESTS_CA_BUNDLE": str(bundle)}, str(bundle)):
        found = environ(Context(variables, tmp_path, tmp_path / "cache"))
        assert (found["UV_SYSTEM_CERTS"], found.get("SSL_CERT_FILE")) == ("1", expected)


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
            "http-status",
            "other 1.0: https://example.org/other.whl: HTTP 404 (not found)",
        ),
        (
            f"{_FETCH}`https://example.org/other.whl`\n  cause: operation timed out\n",
            "timeout",
            "other 1.0: https://example.org/other.whl: the server stalled",
        ),
        (
            f"{_DOWNLOAD}  cause: Hash mismatch for `other==1.0`\n\n         Expected:\n           sha256:aa\n\n"
            "         Computed:\n           sha256:bb\n",
            "wrong-hash",
            "other 1.0: the index's file is not the locked one: SHA-256 bb, locked aa",
        ),
        (
            "error: Failed to read `other @ https://example.org/other.whl`\n  cause: Hash mismatch\n\n"
            "         Expected:\n           sha256:aa\n\n         Computed:\n           sha256:bb\n",
            "wrong-hash",
            "other: the index's file is not the locked one",
        ),
        (
            f"{_BECAUSE}there is no version of other==2.0{_AND}",
            "file-not-on-index",
            "other 2.0: the index does not have it",
        ),
        (
            f"{_BECAUSE}other was not found in the package registry{_AND}",
            "file-not-on-index",
            "other: the index does not have it",
        ),
        (
            "error: No solution found\n  cause: Because the current Python version (3.11.2) does not satisfy\n"
            "         Python>=3.11.5 and other==2.0 depends on Python>=3.11.5, we can conclude ...\n",
            "unfit-machine",
            "other 2.0 needs Python >=3.11.5, and this is 3.11.2",
        ),
        (f"{_BECAUSE}other was not found in the cache{_AND}", "offline-miss", "offline, and a file of other"),
        (f"{_DOWNLOAD}  cause: failed to write: No space left on device (os error 28)\n", "disk-full", "no space left"),
        (
            "error: something new\n  cause: at http://me:secret@example.org/x\n",
            "install-failed",
            "at http://example.org/x",
        ),
        ("", "install-failed", "it exited with status 2"),
    ],
)
def test_uvs_words(stderr: str, code: str, words: str) -> None:
    shown = error_of(Finished(2, "", stderr), {})
    assert shown.code == code and words in shown.message and shown.hint
    assert "secret" not in str(shown)


@pytest.mark.parametrize("status", [153, -25])
def test_a_uv_that_a_signal_ended_is_reported_with_its_name(status: int) -> None:
    assert error_of(Finished(status, "", ""), {}).message.endswith("it was killed by SIGXFSZ")


BOUND = [sys.executable, "-I", "-S", str(io_process.__file__), sys.executable, "-c"]


def test_a_process_bound_to_its_parent_ends_when_its_stdin_does() -> None:
    command = "import time; print('on', flush=True); time.sleep(60)"
    with subprocess.Popen([*BOUND, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.stdin.close()
        # Its stdout ends when the last of both has.
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 137


@pytest.mark.parametrize("status", [0, 3])
def test_its_status_is_passed_on(status: int) -> None:
    with subprocess.Popen([*BOUND, f"raise SystemExit({status})"], stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=30) == status
