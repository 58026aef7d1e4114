"""Whatever a Lock holds, its document holds; whatever is done to the document is found."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from envspec import documents
from envspec.lockfile.diff import diff_locks
from envspec.lockfile.document import canonical, dump, identity, load
from envspec.lockfile.header import FORMAT, DamagedLock, NewerFormat, verify_checksum
from envspec.lockfile.toml_writer import pairs
from envspec.models import (
    BaseImage,
    BuiltWheel,
    ChannelPart,
    CondaChannel,
    CondaPackage,
    Conformance,
    Decision,
    Dependent,
    Driver,
    GpuCode,
    ImageId,
    ImageSettings,
    Lock,
    NamedIndex,
    Package,
    PinnedDigest,
    Platform,
    Provided,
    Python,
    Rejected,
    Resolution,
    Service,
    SystemLayer,
    Target,
    WheelFile,
)
from envspec.names import LINE
from envspec.report import LOCK_DIFF
from tests.support.tries import tries

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9-]{0,7}", fullmatch=True)
VERSIONS = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: f"{pair[0]}.{pair[1]}")
MOMENTS = st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=st.just(timezone.utc))  # noqa: DTZ001
LEVELS = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
# Names that become parts of paths: a few of each form of `envspec.names` will do.
DIGESTS = st.integers(0, 2**256 - 1).map(lambda number: f"sha256:{number:064x}")
URLS = st.sampled_from(
    ["https://files.example.org/a%20b/aa-1.0.tar.gz", "http://[::1]:80/ä/x.conda", "file:///srv/c/x"]
)

LINES = TEXT.filter(LINE.fits)
WHEELS = st.builds("{}-{}-py3-none-any.whl".format, st.sampled_from(["aa", "b_c", "D.e1"]), VERSIONS)
ARCHIVES = st.builds("{}-{}-h0_0{}".format, NAMES.map("a{}".format), VERSIONS, st.sampled_from([".conda", ".tar.bz2"]))
APTS = st.sampled_from(["git", "libc6-dev", "g++=4:13.2.0-7ubuntu1", "libstdc++6:arm64=1.0~rc1"])
HASHES = st.integers(0, 2**256 - 1).map(lambda number: f"{number:064x}")
PLATFORMS = st.sampled_from(Platform)
FILES = st.builds(
    WheelFile,
    index=st.sampled_from(["default", "corp", "url"]),
    filename=WHEELS | st.sampled_from(["aa-1.0.tar.gz", "main.zip"]),
    sha256=HASHES,
    size_bytes=st.none() | st.integers(0, 2**62),
    url=st.none() | LINES,
)
PACKAGES = st.builds(
    Package,
    name=NAMES,
    version=VERSIONS,
    file=FILES,
    required_by=st.lists(st.builds(Dependent, NAMES, TEXT), max_size=3).map(tuple),
    uploaded=st.none() | MOMENTS,
    rejected=st.none() | st.builds(Rejected, TEXT, TEXT),
    extras=st.lists(NAMES, max_size=2, unique=True).map(tuple),
    built=st.none() | st.builds(BuiltWheel, filename=WHEELS, sha256=HASHES, size_bytes=st.integers(0, 2**62)),
    record_sha256=st.none() | HASHES,
)
CONDA = st.builds(
    CondaPackage,
    name=NAMES,
    version=VERSIONS,
    build=st.sampled_from(["0", "py311h0_0", "h1+x"]),
    build_number=st.integers(0, 2**31),
    channel=LINES,
    subdir=st.sampled_from(["noarch", "linux-64"]),
    filename=ARCHIVES,
    url=URLS | st.just("https://user:word@conda.example.org/t/token/t/other/mine/linux-64/a-1-0.conda"),
    sha256=HASHES,
    md5=st.none() | st.just("0" * 32),
    size_bytes=st.none() | st.integers(0, 2**62),
    timestamp_ms=st.none() | st.integers(-(2**40), 2**42),
    depends=st.lists(TEXT, max_size=3).map(tuple),
    constrains=st.lists(TEXT, max_size=2).map(tuple),
    noarch=st.sampled_from(["", "python", "generic"]),
    license=st.none() | TEXT,
    license_family=st.none() | TEXT,
    features=st.none() | TEXT,
    track_features=st.lists(TEXT, max_size=2).map(tuple),
    python_site_packages_path=st.none() | st.just("lib/python3.13t/site-packages"),
    provides=st.lists(st.builds(Provided, NAMES, VERSIONS), max_size=2).map(tuple),
    required_by=st.lists(st.builds(Dependent, NAMES, TEXT), max_size=3).map(tuple),
    rejected=st.none() | st.builds(Rejected, TEXT, TEXT),
)
CHANNELS = st.builds(
    CondaChannel,
    name=LINES.filter(bool),
    url=URLS,
    part=st.none() | st.builds(ChannelPart, records=st.integers(0, 2**40), sha256=HASHES),
)
PYTHONS = st.builds(Python, version=VERSIONS, source=TEXT, url=st.none() | URLS, sha256=st.none() | HASHES)
RESOLUTIONS = st.builds(
    Resolution,
    target=st.builds(Target, platform=PLATFORMS, python=PYTHONS, glibc=LEVELS, macos=LEVELS),
    packages=st.lists(PACKAGES, max_size=4, unique_by=lambda item: item.name).map(tuple),
    warnings=st.lists(TEXT, max_size=2).map(tuple),
    conda=st.lists(CONDA, max_size=3, unique_by=lambda item: item.name).map(tuple),
)
IMAGES = st.builds(
    BaseImage,
    repository=TEXT,
    tag=TEXT,
    cuda_release=st.none() | TEXT,
    flavor=st.none() | TEXT,
    os=TEXT,
    digests=st.lists(
        st.builds(PinnedDigest, platform=PLATFORMS, digest=st.none() | DIGESTS, source=TEXT, kind=TEXT, note=TEXT),
        max_size=2,
        unique_by=lambda item: item.platform,
    ).map(tuple),
)
CODES = st.builds(
    GpuCode,
    platform=PLATFORMS,
    package=NAMES,
    version=VERSIONS,
    variant=TEXT,
    sm=st.lists(TEXT, max_size=3).map(tuple),
    ptx=st.lists(TEXT, max_size=1).map(tuple),
    source=TEXT,
)
SETTINGS = st.builds(
    ImageSettings,
    workdir=TEXT,
    env=st.dictionaries(TEXT, TEXT, max_size=3).map(lambda env: tuple(env.items())),
    compiler=st.sampled_from(["apt", "conda", "none"]),
    apt=st.lists(APTS, max_size=3, unique=True).map(tuple),
    snapshot=st.none() | MOMENTS,
    services=st.lists(
        st.builds(Service, name=NAMES, port=st.integers(1, 65535), logdir=st.none() | TEXT),
        max_size=3,
        unique_by=lambda item: item.name,
    ).map(tuple),
)
SYSTEMS = st.builds(
    SystemLayer,
    platform=PLATFORMS,
    base=DIGESTS,
    apt=st.lists(APTS, max_size=2).map(tuple),
    packages=st.lists(APTS, max_size=2).map(tuple),
    diff_id=DIGESTS,
    digest=DIGESTS,
    size_bytes=st.integers(0, 2**62),
)
IDS = st.builds(ImageId, platform=PLATFORMS, id=DIGESTS, pyc=st.booleans())
CONFORMANCES = st.builds(
    Conformance, checks=st.lists(NAMES, max_size=3).map(tuple), world_size=st.none() | st.integers(1, 2**20)
)
INDEXES = st.builds(
    NamedIndex, name=NAMES, url=URLS, packages=st.lists(NAMES, max_size=3).map(tuple), undated=st.booleans()
)
LOCKS = st.builds(
    Lock,
    format=st.just(FORMAT),
    name=NAMES,
    input_sha256=HASHES,
    as_of=MOMENTS,
    resolutions=st.lists(RESOLUTIONS, max_size=3, unique_by=lambda item: item.target.platform).map(tuple),
    decisions=st.lists(
        st.builds(Decision, what=TEXT, value=TEXT, why=TEXT, source=TEXT, platform=st.none() | PLATFORMS),
        max_size=3,
    ).map(tuple),
    base_image=st.none() | IMAGES,
    driver=st.none() | st.builds(Driver, minimum=TEXT, bundled=st.none() | TEXT, why=TEXT, source=TEXT),
    gpu_code=st.lists(CODES, max_size=2, unique_by=lambda item: (item.platform, item.package, item.version)).map(tuple),
    gpus=st.lists(TEXT, max_size=3).map(tuple),
    facts=TEXT,
    package_as_of=st.lists(st.tuples(NAMES, MOMENTS), max_size=2).map(tuple),
    conda_as_of=st.lists(st.tuples(NAMES, MOMENTS), max_size=2).map(tuple),
    channels=st.lists(CHANNELS, max_size=2).map(tuple),
    indexes=st.lists(INDEXES, max_size=2).map(tuple),
    image=st.just(ImageSettings()) | SETTINGS,
    system=st.lists(SYSTEMS, max_size=2, unique_by=lambda item: item.platform).map(tuple),
    images=st.lists(IDS, max_size=3, unique_by=lambda item: (item.platform, item.pyc)).map(tuple),
    conformance=st.none() | CONFORMANCES,
)
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
