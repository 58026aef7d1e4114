"""What is read of indexes, archives, specs and locks has bounds: in bytes, in memory and in time.

Each case is a server or a file that wants to keep envspec busy. It is refused, or read, soon and in little memory; and
Ctrl-C ends the run within two seconds of the processor's time whatever it is doing.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import resource
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec import documents
from envspec.credentials import without_credentials
from envspec.documents import MAX_JSON_MARKS, parse_json
from envspec.io.archives import MAX_METADATA_BYTES
from envspec.io.http import PAGE_BYTES
from envspec.lockfile.header import add_checksum
from envspec.resolve.pypi.index import file_metadata as sdist_reader
from envspec.resolve.pypi.index.file_metadata import LARGEST_BYTES
from envspec.resolve.pypi.index.page import MOST_FILES, BadPage, parse_page
from envspec.resolve.pypi.metadata import declared, parsed
from envspec.resolve.pypi.no_solution import excluded_versions
from envspec.spec.conda import read_match_spec
from envspec.spec.load import parse_spec
from envspec.structs import replace
from tests.support import preloaded
from tests.support.builders.conda_channel import write
from tests.support.builders.projects import Dialect, File, MetadataFiles, Ranges, day
from tests.support.builders.wheels import Artifact, Method, sdist, wheel
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Answer, Drip, Fault, Flood, Stall, Wire
from tests.support.servers.index import IndexServer
from tests.support.user import Ran, User, refused

MIB: Final = 1 << 20
HTML, JSON = "text/html", "application/vnd.pypi.simple.v1+json"
URL: Final = "https://files.example/simple/victim/"


def test_every_limit() -> None:
    assert (PAGE_BYTES, documents.MAX_TOML_BYTES, documents.MAX_SPEC_BYTES) == (64 * MIB, 64 * MIB, MIB)
    assert (LARGEST_BYTES, MAX_METADATA_BYTES) == (32 * MIB, 32 * MIB)
    assert (MOST_FILES, MAX_JSON_MARKS) == (100_000, 4_000_000)


@dataclass(frozen=True, slots=True)
class Sent:
    """A body as it is sent, with its headers."""

    body: bytes
    headers: dict[str, str]

    def play(self, wire: Wire) -> Answer | None:
        return Answer(200, self.body, self.headers)


def too_new(count: int) -> bytes:
    link = b'<a href="x" data-upload-time="2027-01-01T00:00:00Z">victim-%d-cp27-cp27m-win32.whl</a>'
    return b"".join(link % number for number in range(count))


@dataclass(frozen=True, slots=True)
class Case:
    """What a server of `victim` does. files: on its page. path: of what it answers with `fault` instead. says: the
    refusal; None: it is locked. peak_mib: of memory: a page of 64 MB is there as bytes and as text.
    """

    files: tuple[File, ...] = ()
    path: str = "/simple/victim/"
    fault: Fault | None = None
    says: str | None = None
    dialect: Dialect = field(default_factory=Dialect)
    environ: dict[str, str] = field(default_factory=dict)
    peak_mib: int = 700
    status: tuple[int, ...] = (4, 5)


def page(body: bytes, kind: str = HTML) -> Sent:
    return Sent(body, {"Content-Type": kind})


def closed(links: bytes) -> Sent:
    return page(b"<html>" + links + b"</html>")


def packed(unpacked_mib: int) -> Sent:
    """A page that unpacks to more."""
    body = gzip.compress(b"<html>" + b" " * MIB * unpacked_mib, mtime=0)
    return Sent(body, {"Content-Type": HTML, "Content-Encoding": "gzip"})


def rows(count: int) -> bytes:
    return b",".join(b'{"filename":"victim-%d-py3-none-any.whl","url":"x"}' % number for number in range(count))


def one(artifact: Artifact) -> tuple[File, ...]:
    return (File(artifact, day("2024-01-01")),)


PLAIN: Final = wheel("victim", "1.0")
FLAT: Final = Dialect(metadata=MetadataFiles.NONE)
METADATA: Final = b"Metadata-Version: 2.1\nName: victim\nVersion: 1.0\n"


def bloated(name: str, size: int, method: Method = Method.DEFLATED) -> Artifact:
    """A wheel with a file of zeros in its .dist-info."""
    return wheel("victim", "1.0", files={f"victim-1.0.dist-info/{name}": b" " * size}, method=method)


def long_record() -> Artifact:
    held = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(PLAIN.data)) as old, zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            text = old.read(name)
            if name.endswith("/RECORD"):
                text += "".join(f"victim/{number:x},,\n" for number in range(1_000_000)).encode()
            new.writestr(name, text)
    return replace(PLAIN, data=held.getvalue())


CASES: Final[dict[str, Callable[[], Case]]] = {
    # Closed at their end, so that they are no pages that were cut short.
    "links that do not end": lambda: Case(fault=closed(b"<a " * 10**6), says="lists no file"),
    "more links than a page has": lambda: Case(fault=closed(b"<a>x</a>" * 10**6), says="100000"),
    "a page without an end": lambda: Case(one(PLAIN), fault=Flood(), says="the response is larger than 67 MB"),
    "a page that is a bomb": lambda: Case(fault=packed(300), says="the response is larger than 67 MB"),
    "deep JSON": lambda: Case(fault=page(b"[" * 10**6, JSON), says="nested too deeply"),
    "JSON of too many values": lambda: Case(
        fault=page(b'{"files":[' + b"[]," * MAX_JSON_MARKS + b"0]}", JSON), says="too many"
    ),
    "more files than a page has": lambda: Case(
        fault=page(b'{"files":[' + rows(MOST_FILES + 1) + b"]}", JSON), says="it lists more than 100000 files"
    ),
    "releases that are all too new": lambda: Case(fault=closed(too_new(20_000)), says="victim", status=(2,)),
    "METADATA beside the wheel": lambda: Case(
        one(PLAIN),
        path="/files/victim/victim-1.0-py3-none-any.whl.metadata",
        fault=page(METADATA + b" " * (40 * MIB)),
        says="the response is larger than 34 MB",
    ),
    "METADATA without an end": lambda: Case(
        one(PLAIN), path="/files/victim/*.metadata", fault=Flood(), says="the response is larger than 34 MB"
    ),
    "METADATA that is a bomb": lambda: Case(
        one(wheel("victim", "1.0", metadata=METADATA + b"\n" * (33 * MIB), method=Method.DEFLATED)),
        dialect=FLAT,
        says="its METADATA is larger than 33554432 bytes",
    ),
    "RECORD of a million lines": lambda: Case(one(long_record()), dialect=FLAT),
    "a wheel from a server without ranges": lambda: Case(
        one(bloated("big", 200 * MIB, Method.STORED)), dialect=replace(FLAT, ranges=Ranges.IGNORED), peak_mib=200
    ),
    "a requirement that is nested": lambda: Case(
        one(wheel("victim", "1.0", requires=["x; " + "(" * 4000 + 'python_version<"3"' + ")" * 4000])), says=None
    ),
    "a page that drips": lambda: Case(
        one(PLAIN),
        fault=Drip(),
        says="is not complete within the time limit",
        environ={"ENVSPEC_HTTP_STALL_S": "1.5", "ENVSPEC_HTTP_TOTAL_S": "3", "ENVSPEC_HTTP_ATTEMPTS": "1"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_has_bounds(name: str, tmp_path: Path) -> None:
    case = CASES[name]()
    with IndexServer(case.files, case.dialect) as index:
        if case.fault is not None:
            index.fail(case.path, case.fault)
        user = User(tmp_path, index.url, TMPDIR=str(tmp_path))
        user.wants("victim", as_of="2026-01-01T00:00:00Z")
        ran, seconds, peak = measured(user, **case.environ)
    if case.says is None:
        assert ran.status == 0, ran.stderr
    else:
        assert ran.status in case.status, ran.stderr
        assert case.says in refused(ran, ran.status)
    # Of which envspec, with what it imports, has 90 MB.
    assert peak < case.peak_mib * MIB, peak / MIB
    assert seconds < 40


def measured(user: User, **environ: str) -> tuple[Ran, float, int]:
    """A run, its seconds of CPU, which other programs do not change, and the most memory that it had, in bytes."""
    out, errors = user.folder / "stdout", user.folder / "stderr"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "envspec", "lock", user.spec.name],
            cwd=user.folder,
            env={**user.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        peak = 0
        # What `wait4` says begins with the memory of the process that started it: this one, with its servers.
        while process.poll() is None:
            with suppress(OSError):
                found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
                peak = int(found[1]) * 1024 if found else peak
            time.sleep(0.01)
    texts = [path.read_text() for path in (out, errors)]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(process.returncode, *texts), seconds, peak


def slow_sdist() -> Artifact:
    """It takes long to look through, within the bounds of sdists: 6 GB in 62 MB."""
    noise, zeros, times = os.urandom(56 * MIB), bytes(64 * MIB), 96
    member = tarfile.TarInfo("victim-1.0/data")
    member.size = len(noise) + times * len(zeros)
    parts = [gzip.compress(member.tobuf() + noise, 0), *[gzip.compress(zeros, 9)] * times, gzip.compress(bytes(10240))]
    return replace(sdist("victim", "1.0"), data=b"".join(parts))


#: What still goes on a second after the server was asked: then it is computing, or waiting, that is ended.
LONG: Final = ("a label of many references", "a page that does not come", "a page that drips", "an sdist")
#: What is under way when Ctrl-C comes.
UNDER_WAY: Final[dict[str, Callable[[], Case]]] = {
    "links that do not end": lambda: Case(fault=closed(b"<a " * 20_000_000)),
    "a label of many references": lambda: Case(
        fault=page(b"<html><a>" + (b"&" + b"a" * 31) * 1_900_000 + b"</a></html>")
    ),
    "values of JSON": lambda: Case(fault=page(b'{"files":[' + rows(90_000) + b"]}", JSON)),
    "a page without an end": lambda: Case(one(PLAIN), fault=Flood()),
    "a page that is a bomb": lambda: Case(fault=packed(300)),
    "a page that does not come": lambda: Case(one(PLAIN), fault=Stall()),
    "a page that drips": lambda: Case(one(PLAIN), fault=Drip()),
    "RECORD of a million lines": lambda: Case(one(long_record()), dialect=FLAT),
    "an sdist": lambda: Case(one(slow_sdist())),
}


@pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")
@pytest.mark.parametrize("name", UNDER_WAY)
def test_ctrl_c_ends_it(name: str, tmp_path: Path) -> None:
    case = UNDER_WAY[name]()
    with IndexServer(case.files, case.dialect) as index:
        if case.fault is not None:
            index.fail(case.path, case.fault)
        user = User(tmp_path, index.url)
        user.wants("victim", as_of="2026-01-01T00:00:00Z")
        interrupted(user, index, 0.8 if name in LONG else 0.1)


def interrupted(user: User, server: IndexServer, pause_s: float) -> None:
    run = user.starts()
    until = time.monotonic() + 10
    while not server.requests and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(pause_s)
    before = spent = cpu_seconds(run.child.pid)
    run.child.signal(signal.SIGINT)
    begin = time.monotonic()
    while spent is not None:
        after, spent = spent, cpu_seconds(run.child.pid)
        time.sleep(0.02)
    ran = run.ends()
    seconds = time.monotonic() - begin
    assert ran.status == 130, ran.stderr
    assert ran.stderr.endswith("interrupted\n") and ran.stderr.count("interrupted") == 1
    assert "Traceback" not in ran.stderr and "error: " not in ran.stderr
    # What waits is not on the processor, and what computes has a second of its own: a busy machine prolongs both.
    assert before is not None and after - before < 2
    assert seconds < 20, seconds
    assert user.files() == {}


def cpu_seconds(pid: int) -> float | None:
    """What a process has computed until now; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not preloaded.IS_POSSIBLE, reason="runs are children of a forking parent: Linux only")
@pytest.mark.parametrize("fault", [Flood(), Drip(), Stall()], ids=["endless", "dripping", "silent"])
def test_ctrl_c_ends_reading_a_channel(fault: Fault, tmp_path: Path) -> None:
    channel = write(tmp_path / "forge", ())
    for packed in channel.folder.glob("*/*.zst"):
        # The plain form is read to its end before it is parsed.
        packed.unlink()
    with CondaServer({"forge": channel}) as server, IndexServer([]) as index:
        server.fail("/forge/*/repodata.json", fault)
        user = User(tmp_path, index.url, NO_PROXY="127.0.0.1")
        user.writes(
            f'[env]\nname = "small"\npython = "3.11"\nplatforms = ["linux-64"]\n[conda]\n'
            f'channels = ["{server.channel_url("forge")}"]\ndependencies = ["tool"]\n'
        )
        interrupted(user, server, 0.5)


# Specs and locks


SPECS: Final = {
    "nested lists": ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
    "nested tables": ("a = " + "{a = " * 3000 + "1" + "}" * 3000, "nested too deeply"),
    "a key of many parts": ("a" + ".a" * 20_000 + " = 1", "nested too deeply"),
    "a table of many parts": ("[a" + '."b"' * 20_000 + "]", "nested too deeply"),
    "100,000 dependencies": (
        '[env]\nname = "x"\npython = "3.11"\n[pip]\ndependencies = [' + '"a",' * 100_000 + "]",
        "a list has 100000 entries",
    ),
    "a file of 2 MiB": ("#" * (2 * MIB), "it has more than 1048576 bytes"),
    "a NUL": ('[env]\nname = "x"\npython = "3.11"\n[pip]\ndependencies = ["a\\u0000b"]', "a"),
    "a NUL in the name": (
        '[env]\nname = "a\\u0000b"\npython = "3.11"\n[pip]\ndependencies = []',
        "can't name a folder",
    ),
    "an escape sequence": ('[env]\nname = "x\\u001b[2J"\npython = "3.11"', "name"),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("words", [("lock",), ("lock", "--check")])
def test_specs(name: str, words: tuple[str, ...], tmp_path: Path) -> None:
    text, says = SPECS[name]
    user = User(tmp_path, "http://127.0.0.1:9/")
    user.writes(text)
    begin = time.monotonic()
    ran = user.runs(*words, user.spec)
    assert time.monotonic() - begin < 30
    assert ran.status in (2, 3), ran.stderr
    assert "Traceback" not in ran.stderr and "internal error" not in ran.stderr
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", ran.stderr)
    assert words == ("lock", "--check") or says in ran.stderr


def test_a_lock_with_a_key_of_many_parts(tmp_path: Path) -> None:
    user = User(tmp_path, "http://127.0.0.1:9/")
    user.wants("a", as_of="2026-01-01T00:00:00Z")
    head = 'format = 3\nname = "small"\ninput_sha256 = "x"\nas_of = 2026-01-01T00:00:00Z\n'
    head += 'facts = "x"\ngpus = []\n[files]\n'
    user.lock.mkdir(parents=True)
    (user.lock / "envspec.lock").write_text(add_checksum(head, "a" + ".a" * 50_000 + " = 1\n"))
    begin = time.monotonic()
    ran = user.runs("lock", "--check", user.spec)
    assert time.monotonic() - begin < 30
    assert ran.status == 3, ran.stderr
    assert "Traceback" not in ran.stderr


def test_10000_requirements(tmp_path: Path) -> None:
    """The spec, without an index: what follows takes time by the number of packages."""
    text = '[env]\nname = "x"\npython = "3.11"\nplatforms = ["linux-64"]\n[pip]\ndependencies = [\n'
    text += "".join(f'"package-{number}>=1.{number}",\n' for number in range(10_000)) + "]\n"
    begin = time.process_time()
    spec = parse_spec(text, "spec.toml", datetime(2026, 11, 22, tzinfo=timezone.utc))
    assert len(spec.pip.dependencies) == 10_000
    assert time.process_time() - begin < 8


# Patterns


def test_the_largest_pages_take_time_by_their_size() -> None:
    """Each of these took minutes at 200 kB."""
    for unit in ("<a ", '<a "', "<a '", "<a><", "<a>x</a", "<", "<base ", '<base href="', "</a ", "<a></a", '<a x="<'):
        body = f"<html>{unit * (2_000_000 // len(unit))}</html>".encode()
        begin = time.process_time()
        with suppress(BadPage):
            parse_page(body, HTML, URL)
        assert time.process_time() - begin < 2, unit


@pytest.mark.parametrize(
    "read",
    [
        lambda: parsed("a; " + "(" * 2000 + "python_version<'3'" + ")" * 2000),
        lambda: parsed("a" * 10**6),
        lambda: declared(b"Requires-Dist: a\n" + b" b\n" * 10**6),
        lambda: without_credentials("a" * 10**6 + "://"),
        lambda: list(excluded_versions("a-" * 10**5, {})),
        lambda: read_match_spec("tool =" + "0" * 60 + "!x"),
        lambda: read_match_spec("tool =1." + "a" * 60 + "!x"),
        lambda: parse_json(b"[" * 10**6),
        lambda: documents.parse_toml("a" + ".a" * 10**6),
    ],
)
def test_texts_that_took_long(read: Callable[[], object]) -> None:
    begin = time.process_time()
    with suppress(ValueError):
        read()
    assert time.process_time() - begin < 2


# sdists


_lines = st.lists(
    st.one_of(
        st.sampled_from(
            ["[x]", "[x:os_name=='a']", "[", "]", "[]", "a>=1", "Requires-Dist: a", " b", "Name:", "\x00", ""]
        ),
        st.text(max_size=20),
    ),
    max_size=8,
).map("\n".join)


@given(_lines, _lines, st.booleans(), st.binary(max_size=30))
def test_sdists_are_read_or_refused(info: str, requires: str, whole: bool, tail: bytes) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as tar:
        for path, text in (("victim-1.0/PKG-INFO", info), ("victim-1.0/v.egg-info/requires.txt", requires)):
            data = text.encode("utf-8", "surrogatepass")
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    content = gzip.compress(held.getvalue(), 1)
    content = content if whole else content[: len(content) // 2] + tail
    try:
        made = sdist_reader.metadata(content, "victim-1.0.tar.gz", "victim", "1.0")
    except sdist_reader.BadSdist:
        return
    assert made.startswith(b"Metadata-Version: 2.1\nName: victim\nVersion: 1.0\n")
    assert all(parsed(each) is not None for each in declared(made))
