"""Names from outside as parts of paths: index pages, locks, URLs and archives must not reach beyond the cache."""

from __future__ import annotations

import asyncio
import hashlib
import html
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from envspec.build.reproducible import check_release
from envspec.context import Context
from envspec.diagnostics.machine import this_platform
from envspec.errors import EnvspecError, UsageError
from envspec.fetch.download import Downloads
from envspec.fetch.types import Archive, python_archive
from envspec.image.services import workdir_path
from envspec.image.sources.bytecode import BadPython
from envspec.image.sources.python import StandalonePython
from envspec.image.sources.system import read_changes
from envspec.image.sources.system_container import tar_files
from envspec.lockfile.document import dump, load
from envspec.lockfile.header import add_checksum
from envspec.models import BuiltWheel, CondaPackage, Lock, Python
from envspec.resolve.conda.records import package_of, record_of
from envspec.resolve.pypi.index.client import unreadable_page
from envspec.resolve.pypi.index.page import BadPage, parse_page
from envspec.resolve.pypi.index.routing import PackageIndex
from envspec.structs import replace
from tests.conftest import Serve
from tests.image.test_system_changes import Given
from tests.support.builders import conda_packages, ecosystem, standalone
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.environments import RUNNING, SERIES, conda_row, installs, make_lock, pin, write_lock
from tests.support.builders.images import X86, image_lock, keep_base, make_base
from tests.support.builders.projects import File
from tests.support.builders.wheels import Artifact, wheel
from tests.support.servers.faults import Body
from tests.support.tries import tries
from tests.support.user import User, refused

TOOL: Final = wheel("tool", "1.0")
VICTIM: Final = b"not envspec's\n"
#: From `cache/archives/<sha256>/` to the folder of the user.
OUT: Final = "../../../"


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())


@pytest.fixture
def user(tmp_path: Path, serve: Serve) -> User:
    user = User(tmp_path / "user", serve([File(TOOL)]).url, NO_PROXY="127.0.0.1")
    for name in ("victim.conda", "victim.tar.gz", "victim-1.0-py3-none-any.whl"):
        (user.folder / name).write_bytes(VICTIM)
    return user


def tzdata(channel: CondaChannel, **others: Any) -> CondaPackage:
    row = next(each for each in channel.archives if each.name == "tzdata")
    return conda_row(row, channel.url, **others)


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything outside of the cache: modes, times and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not name.startswith(("cache", "home")):
            state = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found[name] = (state.st_mode, state.st_mtime_ns if path.is_file() else 0, content)
    return found


def every_way(user: User, lock: Path) -> Iterator[str]:
    """What every command that fetches or unpacks says about a lock; nothing outside of the cache changes."""
    before = tree(user.folder)
    for words in (
        ("install", lock, "--prefix", "env"),
        ("install", lock, "--prefix", "env", "--offline"),
        ("image", "build", lock, "--layout", "image"),
        ("image", "id", lock),
    ):
        yield refused(user.runs(*words), 3)
        assert tree(user.folder) == before
    assert not (user.folder / "env").exists()


@pytest.mark.parametrize(
    "filename", [f"{OUT}victim.conda", "..\\..\\victim-1-0.conda", "/tmp/victim-1-0.conda", "victim\0-1-0.conda", ".."]
)
def test_the_filename_of_a_conda_package_in_a_lock(user: User, channel: CondaChannel, filename: str) -> None:
    """The checksum of the lock is that of what was put into it."""
    lock = write_lock(user.folder / "lock", make_lock(conda=[tzdata(channel, filename=filename)]))
    for shown in every_way(user, lock):
        assert "`resolution[0].conda[0].filename` is not the name of a conda archive" in shown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sha256", "../../../../victim.conda"),
        ("sha256", "AB" * 32),
        ("md5", "x\n"),
        ("name", "../../tzdata"),
        ("version", "1/../../x"),
        ("build", "0/../../x"),
        ("subdir", "../.."),
        ("url", "file:///x\n@EXPLICIT"),
        ("python_site_packages_path", "../../../../home"),
        ("python_site_packages_path", "/home"),
    ],
)
def test_what_else_of_a_conda_package_becomes_a_path(channel: CondaChannel, field: str, value: str) -> None:
    said = refusal_of(make_lock(conda=[tzdata(channel, **{field: value})]))
    assert f"`resolution[0].conda[0].{field}` is not" in said


@pytest.mark.parametrize(
    ("field", "value"),
    [("subdir", "../.."), ("version", "1!2_3"), ("build", "0"), ("python_site_packages_path", "../../home")],
)
def test_a_row_of_a_channel(channel: CondaChannel, field: str, value: str) -> None:
    row = record_of(tzdata(channel, **{field: value}))
    if "/" not in value:
        assert getattr(package_of(row, ()), field) == value
        return
    with pytest.raises(EnvspecError, match="which is not") as caught:
        package_of(row, ())
    assert f"its record in the channel has the {field} " in one_message(caught.value, 5)


@pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")
@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (f"{OUT}{OUT}victim-1-0.conda", {}),
        ("victim\0-1-0.conda", {}),
        ("victim-1-0.conda\n", {}),
        ("", {"subdir": "../../.."}),
        ("", {"name": "../../tzdata"}),
        ("", {"build": "../../0"}),
        ("", {"version": "1/../.."}),
        ("", {"python_site_packages_path": "../../../.."}),
        ("", {"sha256": "../../.."}),
    ],
)
def test_a_channel_of_such_rows(
    user: User, channel: CondaChannel, tmp_path: Path, key: str, fields: dict[str, str]
) -> None:
    """rattler reads them first: whatever it takes, what is locked can be read, and nothing outside changes."""
    shutil.copytree(channel.folder, tmp_path / "evil")
    path = tmp_path / "evil" / "noarch" / "repodata.json"
    path.with_name("repodata.json.zst").unlink(missing_ok=True)
    document = json.loads(path.read_text())
    for kind in ("packages", "packages.conda"):
        rows = document[kind]
        for name in [name for name in rows if name.startswith("tzdata-")]:
            row = rows.pop(name)
            rows[key or name] = {**row, **fields}
    path.write_text(json.dumps(document))
    user.writes(
        f'[env]\nname = "small"\npython = "{SERIES}"\nplatforms = ["{this_platform().value}"]\n'
        f"[conda]\nchannels = ['{(tmp_path / 'evil').as_uri()}']\ndependencies = [\"tzdata\"]\n"
    )
    before = tree(user.folder)
    ran = user.locks()
    if ran.status == 0:
        assert load((user.lock / "envspec.lock").read_text(), "x").resolutions
        shutil.rmtree(user.folder / "locks")
    else:
        assert ran.status in (4, 5)
        refused(ran, ran.status)
    assert tree(user.folder) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"filename": f"{OUT}victim-1.0-py3-none-any.whl"},
        {"filename": "tool-1.0-1/../../x-py3-none-any.whl"},
        {"filename": "tool.exe"},
        {"sha256": OUT},
        {"index": "a\nb"},
        {"url": "https://h/tool-1.0-py3-none-any.whl\n--index-url https://other"},
    ],
)
def test_what_of_a_wheel_becomes_a_path_or_a_line(changed: dict[str, str]) -> None:
    row = pin(TOOL)
    said = refusal_of(make_lock(wheels=[replace(row, file=replace(row.file, **changed))]))
    assert f"`resolution[0].package[0].file.{next(iter(changed))}` is not" in said


def test_other_names_of_a_lock() -> None:
    row = pin(TOOL)
    built = BuiltWheel("../x-1.0-py3-none-any.whl", "ab" * 32, 1)
    for wrong in (
        replace(row, built=built),
        replace(row, built=replace(built, filename=TOOL.filename, sha256="..")),
        replace(row, version="1.0\n--extra-index-url https://other"),
        replace(row, name="tool @ https://other/x.whl"),
        replace(row, extras=("x]\n",)),
        replace(row, record_sha256="x"),
    ):
        assert "`resolution[0].package[0]." in refusal_of(make_lock(wheels=[wrong]))
    for python in (
        Python(RUNNING, "standalone", "https://h/x", ".."),
        Python(f"{RUNNING}/..", "standalone", "https://h/x", "ab" * 32),
        Python(RUNNING, "standalone", "https://h/x y", "ab" * 32),
    ):
        assert "`resolution[0].python." in refusal_of(make_lock(python=python))
    assert "`name` is not" in refusal_of(make_lock(name="x\nfake: 1"))


def refusal_of(lock: Lock) -> str:
    with pytest.raises(EnvspecError) as caught:
        load(dump(lock, {}), "x")
    return one_message(caught.value, 3)


def one_message(fault: EnvspecError, status: int | None = None) -> str:
    assert status in (None, fault.exit_code), fault
    assert fault.message.isprintable(), fault.message
    assert fault.hint
    return fault.message


@pytest.mark.parametrize(
    "name", ["..%2F..%2F..%2Fvictim.tar.gz", "%2E%2E%2F..%2F%2e%2e%2Fvictim.tar.gz", "victim%00.tar.gz", "%2E%2E"]
)
def test_the_file_name_in_a_pythons_url(user: User, name: str) -> None:
    python = Python(RUNNING, "standalone", f"file://{user.folder}/{name}", hashlib.sha256(b"x").hexdigest())
    base = keep_base(user.cache, make_base())
    for words, lock in (
        (("install", "lock", "--prefix", "env"), make_lock(python=python)),
        (
            ("image", "build", "lock", "--layout", "image"),
            image_lock({X86: [pin(TOOL)]}, base.named(), python=python),
        ),
    ):
        write_lock(user.folder / "lock", lock)
        before = tree(user.folder)
        for more in ((), ("--offline",)):
            assert "is not a plain file name" in refused(user.runs(*words, *more), 5)
            assert tree(user.folder) == before


EVIL: Final = [
    "tool-1.0-1/../../x-py3-none-any.whl",
    f"tool-1.0-1{OUT}victim-py3-none-any.whl",
    "tool-1.0-1\\..\\x-py3-none-any.whl",
    "tool-1.0-1\0-py3-none-any.whl",
    "tool-1.0-1\n-py3-none-any.whl",
    "tool-1.0-1:x-py3-none-any.whl",
    "tool-1.0-1\u202e-py3-none-any.whl",
    f"tool-1.0-1{'x' * 240}-py3-none-any.whl",
]


@pytest.mark.parametrize("filename", EVIL)
def test_a_file_name_on_an_index_page(tmp_path: Path, serve: Serve, filename: str) -> None:
    index = serve([ecosystem.release("tool", "1.0"), ecosystem.release("app", "1.0", requires=["tool"])])
    row = {"url": TOOL.filename, "hashes": {"sha256": TOOL.sha256}, "upload-time": "2024-01-01T00:00:00Z"}
    files = [{"filename": name, **row} for name in (filename, TOOL.filename)]
    page = json.dumps({"meta": {"api-version": "1.0"}, "name": "tool", "files": files}).encode()
    index.fail(index.page_path("tool"), Body(page, "application/vnd.pypi.simple.v1+json"))
    user = User(tmp_path / "user", index.url)
    user.wants("app")
    before = tree(user.folder)
    shown = refused(user.locks(), 5)
    assert "the page of tool" in shown and "its file name could lead out of a folder" in shown
    assert tree(user.folder) == before


@pytest.mark.parametrize(
    "filename", ["tool-2.0-a-b-c-d-py3-none-any.whl", "tööl-2.0-py3-none-any.whl", "tool-2.0-py3-none-any .whl", ".whl"]
)
def test_an_odd_name_on_a_page_is_no_release(filename: str) -> None:
    page = json.dumps({"files": [{"filename": filename, "url": "x"}, {"filename": TOOL.filename, "url": "y"}]})
    listing = parse_page(page.encode(), "application/json", "http://127.0.0.1/simple/tool/")
    assert listing.names == (TOOL.filename,)
    assert listing.file(0).url.endswith("/y")


@pytest.mark.parametrize("body", ["[" * 100_000, '{"files": [' + "9" * 5000 + "]}", '{"files": [{"filename": 1}]}'])
def test_a_page_that_json_chokes_on(body: str) -> None:
    with pytest.raises(BadPage):
        parse_page(body.encode(), "application/json", "http://127.0.0.1/simple/tool/")


@pytest.mark.parametrize("name", ["tool-1.0-py3-none-any.\nRUN id.whl", "tool-1.0-py3-none-any.\u202e.whl"])
def test_the_name_of_a_wheel_that_a_backend_gives(tmp_path: Path, name: str) -> None:
    """Its last tag may say anything, and the name stands in the lock's Dockerfile."""
    path = tmp_path / name
    path.write_bytes(TOOL.data)
    with pytest.raises(EnvspecError, match="which is not the name of a wheel") as caught:
        check_release(path, "tool", None, "tool 1.0")
    one_message(caught.value, 4)


@pytest.mark.parametrize("url", ["file:///dev/zero", "file:///nul%00l", f"file:///{'x' * 300}"])
def test_a_local_archive_that_is_no_file(tmp_path: Path, url: str) -> None:
    with pytest.raises(EnvspecError, match="mounted on this machine") as caught:
        fetched(tmp_path, [Archive("x 1", url, "x-1-0.conda", "ab" * 32)])
    one_message(caught.value, 5)


# 10,000 names.

_CORES: Final = ("tool-1.0-py3-none-any.whl", "tool-1.0.tar.gz", "tool-1.0-h0_0.conda", "cpython-3.11.tar.gz", "tool")
_UNITS: Final = (
    *("..", "/", "../", "..\\", "\\", "/etc/passwd", "~", ".", "-", "C:", "C:\\", "\\\\host\\", "con", "nul.", "aux-1"),
    *("\0", "\n", "\r\n", "\t", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\u200b", "\ufeff", "\ud800", "\udfff"),
    # Full-width and small forms of separators, one-dot leaders, letters that are composed, a blank that does not break.
    *("\uff0f", "\u2024\u2024", "\ufe68", "\uff41", "\u00e9", "e\u0301", "\u0130", "\u00a0", " ", "\u6f22" * 90),
    *("%2F", "%2e%2e%2f", "%00", "%5c", "%", "&#47;", "&amp;", "$HOME", "${x}", "`id`", ";", "|", "<", ">", '"', "'"),
    *("#", "?", "@", "=", ":", "*", "x" * 100, "!", "+cu"),
)


def generated(count: int) -> list[str]:
    """Different names, the same in every run: usual ones, and such with one to four pieces put in."""
    chance = random.Random(11)
    found = dict.fromkeys((*_CORES, *EVIL, "", ".", ".."))
    while len(found) < count:
        name = chance.choice(_CORES).replace("1.0", f"{chance.randrange(30)}.{chance.randrange(30)}")
        for _ in range(chance.choice((0, 1, 1, 2, 3, 4))):
            place = chance.randrange(len(name) + 1)
            name = name[:place] + chance.choice(_UNITS) + name[place + chance.choice((0, 0, 1)) :]
        found[name] = None
    return list(found)


def accepts_pages(names: Sequence[str]) -> None:
    """The names on pages of both forms: a row that is read has a plain one."""
    hrefs = [f"{quote(name, errors='replace')}#sha256={'ab' * 32}" for name in names]
    rows = [{"filename": name, "url": href} for name, href in zip(names, hrefs, strict=True)]
    # Half a surrogate pair is no text: the parser refuses the page.
    for row in [row for row in rows if not is_text(row["filename"])][:20]:
        with pytest.raises(BadPage, match=r"not a package index page: .* hex escape at line 1"):
            parse_page(json.dumps({"files": [row]}).encode(), "application/json", "http://127.0.0.1/simple/tool/")
    accepts_page(json.dumps({"files": [row for row in rows if is_text(row["filename"])]}), "application/json")
    for label in (html.escape, str, lambda _: "x"):
        anchors = (f'<a href="{href}">{label(name)}</a>\n' for name, href in zip(names, hrefs, strict=True))
        accepts_page(f"<html>{''.join(anchors)}</html>", "text/html")


def is_text(name: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in name)


def accepts_page(body: str, kind: str) -> None:
    url = "http://127.0.0.1/simple/tool/"
    listing = parse_page(body.encode("utf-8", "replace"), kind, url)
    assert listing.names
    for number in range(len(listing.names)):
        try:
            assert_plain(listing.file(number).filename)
        except BadPage as error:
            one_message(unreadable_page(PackageIndex("default", url), "tool", error), 5)


def accepts_lock(name: str, template: str) -> None:
    head, rest = template.split("# end of header\n")
    text = add_checksum(head, rest.replace("NAME", toml_string(name)))
    try:
        lock = load(text, "x")
    except EnvspecError as fault:
        one_message(fault, 3)
        return
    part = lock.resolutions[0]
    for found in (*(each.filename for each in part.conda), *(each.file.filename for each in part.packages)):
        assert_plain(found)


def toml_string(text: str) -> str:
    return '"' + "".join(f"\\u{ord(c):04X}" if not c.isalnum() or ord(c) > 127 else c for c in text) + '"'


def archive_named(name: str, url: str, sha256: str) -> list[Archive]:
    """The archives with that name: as a conda package's, and as a Python's from its URL."""
    found = []
    for make in (
        partial(Archive, "tool 1.0", url, name),
        partial(python_archive, "3.11.0", f"https://127.0.0.1/{quote(name, safe='', errors='replace')}"),
        partial(python_archive, "3.11.0", f"https://127.0.0.1/x/{name}"),
    ):
        try:
            archive = make(sha256)
        except EnvspecError as fault:
            one_message(fault, 5)
            continue
        assert_plain(archive.filename)
        found.append(replace(archive, url=url))
    return found


def assert_plain(name: str) -> None:
    assert name.isascii() and name.isprintable() and 0 < len(name) < 255
    assert not set(name) & set("/\\:") and not name.startswith(".")
    assert Path("/folder", name).name == name


def fetched(cache: Path, archives: list[Archive]) -> None:
    asyncio.run(Downloads(Context({}, cache, cache, jobs=32)).fetch(archives))


def test_ten_thousand_names(tmp_path: Path, channel: CondaChannel) -> None:
    """Each is accepted or refused with one message; the tree outside of the cache is unchanged."""
    (tmp_path / "source").write_bytes(b"content")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "victim.conda").write_bytes(VICTIM)
    before = tree(tmp_path)
    sha256 = hashlib.sha256(b"content").hexdigest()
    row, package = tzdata(channel, filename="a-NAME-0.conda"), pin(TOOL, filename="a-NAME-py3-none-any.whl")
    templates = [
        dump(make_lock(conda=[row]), {}).partition("\n")[2].replace('"a-NAME-0.conda"', "NAME"),
        dump(make_lock(wheels=[package]), {}).partition("\n")[2].replace('"a-NAME-py3-none-any.whl"', "NAME"),
    ]
    archives: dict[str, Archive] = {}
    names = generated(tries(10_000))
    accepts_pages(names)
    for number, name in enumerate(names):
        accepts_lock(name, templates[number % 2])
        archives |= {each.filename: each for each in archive_named(name, (tmp_path / "source").as_uri(), sha256)}
    assert len(names) // 10 < len(archives) < 9 * len(names) // 10
    fetched(tmp_path / "cache", list(archives.values())[:400])
    kept = {path.name for path in (tmp_path / "cache" / "archives" / sha256).iterdir()}
    assert kept == set(list(archives)[:400])
    assert tree(tmp_path) == before


@pytest.mark.skipif(not this_platform().is_linux, reason="the committed locks are Linux's")
def test_usual_names_are_accepted(channel: CondaChannel) -> None:
    usual = "a_b.c-1!2.0rc1+cu12.8-1_x-cp311.py3-abi3-manylinux_2_17_x86_64.linux_x86_64.whl"
    lock = make_lock(
        conda=[conda_row(each, channel.url) for each in channel.archives if each.subdir in ("linux-64", "noarch")][:3],
        wheels=[pin(Artifact("a", "1", usual, b"", b""))],
    )
    found = load(dump(lock, {}), "x").resolutions[0]
    assert (found.packages, found.conda) == (lock.resolutions[0].packages, lock.resolutions[0].conda)


# Names that hide files of an image's lower layers, in what is neither a wheel, nor a conda package, nor an sdist.

MARKS = ("lib/.wh.os.py", "lib/.wh..wh..opq", ".wh.lib/os.py")


@pytest.mark.parametrize("mark", MARKS)
def test_a_standalone_python_hides_nothing(mark: str, tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    sha256 = standalone.write(archive, {**standalone.made_up(), f"python/{mark}": b""})
    with pytest.raises(BadPython, match="would hide files of an image's lower layers"):
        list(StandalonePython(archive, sha256, standalone.VERSION, frozenset(), None).entries())


def test_nor_is_it_installed(tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    sha256 = standalone.write(archive, {f"python/lib/python{standalone.SERIES}/.wh.os.py": b""})
    user = User(tmp_path, "http://127.0.0.1:9")
    python = Python(RUNNING, "standalone", archive.as_uri(), sha256)
    ran = installs(user, write_lock(tmp_path / "lock", make_lock(python=python)))
    assert "would hide files of an image's lower layers" in refused(ran, 5)
    assert not (tmp_path / "env").exists()


def test_a_package_of_the_system_hides_what_it_removed_alone(tmp_path: Path) -> None:
    warned: list[str] = []
    given = Given(("etc",), {"etc/.wh.passwd": b"", "etc/.wh.ssh/key": b"", "etc/own": b"1"}, gone=["etc/old"])
    changes, *_ = read_changes(tar_files(given.stream()), tmp_path, warned.append)
    assert [change.path for change in changes if ".wh." in change.path] == ["etc/.wh.old"]
    assert [text.partition(" is excluded")[0] for text in warned] == [
        "system layer: /etc/.wh.passwd",
        "system layer: /etc/.wh.ssh/key",
    ]


@pytest.mark.parametrize("workdir", ["/.wh.usr", "/data/.wh..wh..opq"])
def test_a_working_folder_hides_nothing(workdir: str) -> None:
    with pytest.raises(UsageError, match="would hide files of the base image"):
        workdir_path(workdir)
