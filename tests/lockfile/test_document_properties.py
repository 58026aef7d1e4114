"""Whatever a Lock holds, its document holds; whatever is done to the document is found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import cache
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from envspec import documents, names
from envspec.lockfile.diff import diff_locks
from envspec.lockfile.document import canonical, dump, identity, load
from envspec.lockfile.header import FORMAT, DamagedLock, NewerFormat, verify_checksum
from envspec.lockfile.toml_writer import pairs
from envspec.models import (
    BuildSettings,
    CondaPackage,
    Conformance,
    GpuCode,
    ImageId,
    ImageSettings,
    Lock,
    Package,
    PinnedDigest,
    Resolution,
    Service,
    SystemLayer,
)
from envspec.reasons import Reason
from envspec.report import LOCK_DIFF
from envspec.structs import defaults_of, replace
from tests.support.tries import tries

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,3}", fullmatch=True)
VERSIONS = st.builds("{}.{}".format, st.integers(0, 30), st.integers(0, 30))
_FIRST: Final = datetime(1980, 1, 1, tzinfo=timezone.utc)
#: One draw, as for hashes.
TIMES = st.integers(0, 220 * 365 * 86_400 * 10**6).map(lambda number: _FIRST + timedelta(microseconds=number))
LEVELS = st.tuples(st.integers(0, 99), st.integers(0, 99))
#: Of few random bytes: Hypothesis gives up on locks that need many.
HASHES = st.integers(0, 2**16 - 1).map(lambda number: f"{number:04x}" * 16)
WHEELS = st.builds("{}-{}-py3-none-any.whl".format, st.sampled_from(["aa", "b_c", "D.e1"]), VERSIONS)
URLS = [
    *("https://files.example.org/a%20b/aa-1.0.tar.gz", "http://[::1]:80/ä/x.conda", "file:///srv/c/x"),
    "https://user:word@conda.example.org/t/token/t/other/mine/linux-64/a-1-0.conda",
]
#: Texts of each form: they become parts of paths, so a few of each will do.
FORMS: Final[Mapping[names.Form, st.SearchStrategy[str]]] = {
    names.NAME: NAMES,
    names.NAME_PATTERN: NAMES,
    names.VERSION: VERSIONS,
    names.BUILD: st.sampled_from(["0", "py311h0_0", "h1+x"]),
    names.LINE: TEXT.filter(names.LINE.fits),
    names.URL: st.sampled_from(URLS),
    names.SHA256: HASHES,
    names.MD5: st.just("0" * 32),
    names.DIGEST: HASHES.map("sha256:{}".format),
    names.APT: st.sampled_from(["git", "libc6-dev", "g++=4:13.2.0-7ubuntu1", "libstdc++6:arm64=1.0~rc1"]),
    names.WHEEL: WHEELS,
    names.RELEASE_FILE: WHEELS | st.sampled_from(["aa-1.0.tar.gz", "main.zip"]),
    names.CONDA_ARCHIVE: st.builds("a{}-{}-h0_0{}".format, NAMES, VERSIONS, st.sampled_from([".conda", ".tar.bz2"])),
    names.INNER_PATH: st.just("lib/python3.13t/site-packages"),
    names.IMAGE_PATH: st.sampled_from(["/usr/bin", "/usr/local/lib/python3.12/dist-packages"]),
}
REASON_VALUES = st.dictionaries(st.sampled_from(["cuda", "package"]), TEXT, max_size=1).map(
    lambda each: tuple(each.items())
)
REASONS = st.builds(Reason, TEXT, REASON_VALUES, st.just(()) | st.tuples(st.builds(Reason, TEXT, REASON_VALUES)))
#: What makes two values of a list two, for the lists in which none is twice.
UNIQUE: Final[Mapping[Any, Any]] = {
    Resolution: lambda each: each.target.platform,
    Package: lambda each: each.name,
    BuildSettings: lambda each: each.name,
    CondaPackage: lambda each: each.name,
    PinnedDigest: lambda each: each.platform,
    Service: lambda each: each.name,
    SystemLayer: lambda each: each.platform,
    ImageId: lambda each: (each.platform, each.pyc),
    GpuCode: lambda each: (each.platform, each.package, each.version),
}


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field of the models."""
    simple = {
        Reason: REASONS,
        str: TEXT,
        bool: st.booleans(),
        int: st.integers(0, 2**40),
        datetime: TIMES,
        tuple[int, int]: LEVELS,
    }
    arguments = get_args(hint)
    if hint in simple:
        return simple[hint]
    if get_origin(hint) is Annotated:
        return FORMS[arguments[1]] if arguments[1] in FORMS else values(arguments[0])
    if type(None) in arguments:
        return st.none() | values(arguments[0])
    if hint == tuple[tuple[str, str], ...]:
        return st.dictionaries(TEXT, TEXT, max_size=1).map(lambda pairs: tuple(pairs.items()))
    if arguments and arguments[-1] is Ellipsis:
        # Two of those among which one is found by its name; more of the others make Hypothesis give up on whole locks.
        most = 2 if arguments[0] in UNIQUE else 1
        return st.lists(values(arguments[0]), max_size=most, unique_by=UNIQUE.get(arguments[0])).map(tuple)
    if arguments:
        return st.tuples(*map(values, arguments))
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint, include_extras=True)
    return st.builds(hint, **{name: values(hints[name]) for name in defaults_of(hint) if name != "directory"})


LOCKS = values(Lock).map(lambda lock: replace(lock, format=FORMAT))
SETTINGS, SYSTEMS, IDS, CONFORMANCES = map(values, (ImageSettings, SystemLayer, ImageId, Conformance))
LISTED = st.dictionaries(TEXT, HASHES, max_size=3)


@settings(max_examples=60, deadline=None)
@given(LOCKS, LISTED)
def test_what_is_dumped_is_loaded(lock: Lock, files: dict[str, str]) -> None:
    text = dump(lock, files)
    wanted = canonical(lock)
    assert load(text, "x") == wanted
    assert canonical(wanted) == wanted
    assert dump(wanted, files) == text
    head, _ = verify_checksum(text.encode(), "x")
    assert dict(head.files) == files
    assert [tuple(each) for each in head.partial_channels] == [
        (channel.name, channel.part.records, channel.part.sha256) for channel in wanted.channels if channel.part
    ]


@settings(max_examples=40, deadline=None)
@given(LOCKS, st.lists(SYSTEMS, max_size=1).map(tuple), st.lists(IDS, max_size=1).map(tuple), TEXT)
def test_what_builds_find_is_no_part_of_the_identity_and_settings_are(
    lock: Lock, system: tuple[SystemLayer, ...], images: tuple[ImageId, ...], word: str
) -> None:
    assert identity(replace(lock, system=system, images=images)) == identity(lock)
    assert identity(canonical(lock)) == identity(lock)
    assert identity(replace(lock, indexes=())) == identity(lock)
    other = replace(lock, image=replace(lock.image, workdir=f"{lock.image.workdir}/{word}"))
    assert identity(other) != identity(lock)


@settings(max_examples=40, deadline=None)
@given(LOCKS, CONFORMANCES, CONFORMANCES, HASHES, HASHES)
def test_what_is_tested_and_compared_is_no_part_of_the_identity(
    lock: Lock, one: Conformance, other: Conformance, sha256: str, contents: str
) -> None:
    """The spec's hash is over its [conformance]: that it moves with it must not give another image."""
    bare = replace(lock, conformance=one)
    assert identity(replace(bare, conformance=other, input_sha256=sha256)) == identity(bare)
    anchored = tuple(
        replace(r, packages=tuple(replace(p, record_sha256=contents) for p in r.packages)) for r in lock.resolutions
    )
    assert identity(replace(lock, resolutions=anchored)) == identity(lock)
    assert identity(replace(lock, input_sha256=sha256, conformance=None)) != identity(replace(lock, conformance=one))


@settings(max_examples=tries(100), deadline=None)
@given(st.dictionaries(TEXT, TEXT | st.lists(TEXT, min_size=1, max_size=4) | st.integers(-(2**63), 2**63 - 1)))
def test_what_is_written_is_toml_of_the_same_value(values: dict[str, str | list[str] | int]) -> None:
    assert documents.parse_toml(pairs(values)) == values


@settings(max_examples=60, deadline=None)
@given(LOCKS, st.data())
def test_a_changed_byte_is_found(lock: Lock, data: st.DataObject) -> None:
    document = dump(lock, {}).encode()
    place = data.draw(st.integers(0, len(document) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != document[place]))
    changed = document[:place] + bytes([byte]) + document[place + 1 :]
    try:
        head, body = verify_checksum(changed, "x")
    except (DamagedLock, NewerFormat):
        return
    # Only the words of the first line are not under the seal: they say nothing.
    assert place < document.index(b"\n")
    assert (head, body) == verify_checksum(document, "x")


@settings(max_examples=40, deadline=None)
@given(LOCKS, LOCKS)
def test_a_lock_does_not_differ_from_itself_and_every_difference_can_be_told(one: Lock, other: Lock) -> None:
    assert diff_locks(one, one).is_empty
    forth, back = diff_locks(one, other), diff_locks(other, one)
    assert forth.is_empty == back.is_empty
    assert len(forth.packages) == len(back.packages)
    assert len(forth.conda) == len(back.conda)
    for diff in (forth, back):
        for form in LOCK_DIFF:
            assert LOCK_DIFF.render(form, diff).endswith("\n")
