"""conda's packages as layers: as rattler links them, the same from every cache, with nothing of this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from envspec.context import Context, ReporterOf, Step
from envspec.diagnostics.machine import this_platform
from envspec.errors import NetworkError, NoSolution
from envspec.fetch.conda_link import BadCondaPackage
from envspec.image.base_layers import BaseLayers, PythonLayers
from envspec.image.config import Base
from envspec.image.layers.ownership import OwnedPathCache, OwningSource
from envspec.image.layers.store import LayerStore
from envspec.image.layers.types import PREFIX, Compression, Entry, InMemory, Layer
from envspec.image.options import ImageStage
from envspec.image.sources.bytecode import PycCompiler, unpacked_build
from envspec.models import CondaPackage, Python
from envspec.structs import replace
from tests.support.builders import conda_packages
from tests.support.builders.conda_archive import PREFIX as PLACEHOLDER
from tests.support.builders.conda_archive import CondaArchive, Form, Link, Program, archive
from tests.support.builders.conda_channel import CondaChannel, write
from tests.support.builders.entries import content, rows_of
from tests.support.builders.environments import RUNNING, SERIES, conda_row, make_lock

pytestmark = pytest.mark.skipif(not this_platform().is_linux, reason="the test channel's programs are Linux's")

LIB: Final = f"{PREFIX}/lib/python{SERIES}/site-packages"
OURS: Final = PycCompiler(Path(sys.executable), RUNNING)
NAMES: Final = ("python", "greet", "pathwise", "libpathwise", "oldstyle")


def extra() -> list[CondaArchive]:
    here = this_platform().value
    same, text = {"share/same.txt": b"same"}, PLACEHOLDER.encode()
    module = {
        f"lib/python{SERIES}/site-packages/native/__init__.py": b"x = 1\n",
        f"lib/python{SERIES}/site-packages/native/__pycache__/__init__.cpython-{SERIES.replace('.', '')}.pyc": b"time",
        f"lib/python{SERIES}/site-packages/native/broken.py": b"not (python\n",
        f"lib/python{SERIES}/site-packages/native/data.py.txt": b"x",
    }
    return [
        archive("twin-a", "1.0", {**same, "bin/a": Program(b"#!" + text + b"/bin/python\n")}, subdir=here),
        archive("twin-b", "1.0", {**same, "share/b.txt": b"b"}, subdir=here),
        archive("rival", "1.0", {"share/same.txt": b"other"}, subdir=here),
        archive("native", "1.0", module, subdir=here, form=Form.TAR_BZ2),
        archive("linked", "1.0", {"lib/real/x": b"x", "lib64": Link("lib"), "etc/there": Link("/etc/os")}, subdir=here),
        archive("behind", "1.0", {"lib64/y": b"y"}, subdir=here),
        archive("outside", "1.0", {"../../out": b"y"}, subdir=here),
        archive("absolute", "1.0", {"/etc/out": b"y"}, subdir=here),
    ]


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", [*conda_packages.forge(), *extra()])


@dataclass
class Builder:
    """Somebody with a cache."""

    cache: Path
    channel: CondaChannel
    is_known: Callable[[OwningSource], bool] = lambda _: False
    linked: list[tuple[int, int]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def rows(self, *names: str) -> list[CondaPackage]:
        found = []
        for each in names:
            name, _, version = each.partition("=")
            subdir = (
                "noarch"
                if name in {"greet", "filelock"}
                else "linux-64"
                if name == "oldstyle"
                else this_platform().value
            )
            found.append(conda_row(self.channel.find(name, version, subdir=subdir), self.channel.url))
        return found

    def parts(self) -> PythonLayers:
        def progress(step: Step) -> None:
            if step.stage == ImageStage.LINKING:
                self.linked.append((step.done, step.total))

        reporter = ReporterOf(progress=progress, warning=self.warnings.append)
        return PythonLayers(Context({}, self.cache, self.cache, reporter=reporter), this_platform(), self.is_known)

    def below(
        self, parts: PythonLayers, rows: Sequence[CondaPackage], pyc: PycCompiler | None = None, most: int = 20
    ) -> BaseLayers:
        (resolution,) = make_lock(conda=rows).resolutions
        return parts.below(resolution, Base("b", "sha256:0", "sha256:0", {}), pyc, most)

    @contextmanager
    def fetched(
        self, rows: Sequence[CondaPackage], pyc: PycCompiler | None = None, most: int = 20
    ) -> Iterator[BaseLayers]:
        parts = self.parts()
        try:
            below = self.below(parts, rows, pyc, most)
            asyncio.run(below.fetch())
            yield below
        finally:
            parts.close()

    def entries(
        self, rows: Sequence[CondaPackage], pyc: PycCompiler | None = None, most: int = 20
    ) -> list[list[Entry]]:
        with self.fetched(rows, pyc, most) as below:
            found = [list(source.entries()) for source in below.sources]
            for layer in found:
                assert rows_of(layer)
            # Read while it is there.
            return [[_in_memory(entry) for entry in layer] for layer in found]

    def owners(self, rows: Sequence[CondaPackage], most: int = 20) -> dict[str, str]:
        with self.fetched(rows, most=most) as below:
            return OwnedPathCache(self.cache).owners(below.sources)


def _in_memory(entry: Entry) -> Entry:
    return replace(entry, data=InMemory(content(entry))) if entry.data is not None else entry


@pytest.fixture
def builder(tmp_path: Path, channel: CondaChannel) -> Builder:
    return Builder(tmp_path / "cache", channel)


def by_path(layers: Sequence[Sequence[Entry]]) -> dict[str, Entry]:
    return {entry.path: entry for layer in layers for entry in layer}


def test_files_name_the_images_prefix(builder: Builder) -> None:
    found = by_path(builder.entries(builder.rows(*NAMES)))
    assert content(found[f"{PREFIX}/bin/greet"]).splitlines()[0] == f"#!/opt/env/bin/python{SERIES}".encode()
    assert found[f"{PREFIX}/bin/greet"].mode == 0o755
    assert b"/opt/env" in content(found[f"{PREFIX}/etc/pathwise.conf"])
    library = content(found[f"{PREFIX}/lib/libpathwise.so"])
    assert b"/opt/env" in library and PLACEHOLDER.encode() not in library
    assert content(found[f"{PREFIX}/share/oldstyle.txt"]) == b"bz2\n"
    assert f"{LIB}/greet/__init__.py" in found and f"{PREFIX}/conda-meta/history" in found


def test_nothing_of_this_machine_is_in_it(builder: Builder, tmp_path: Path) -> None:
    layers = builder.entries(builder.rows(*NAMES))
    own = {str(builder.cache).encode(), str(tmp_path).encode(), str(Path.home()).encode() + b"/.cache"}
    for entry in by_path(layers).values():
        if entry.data is not None and entry.path != f"{PREFIX}/pyvenv.cfg":
            # The test channel is in a folder, and its address is what the lock says of it.
            text = content(entry).replace(builder.channel.url.encode(), b"")
            assert not any(each in text for each in own), entry.path
            assert b".conda-staging" not in text and b"conda-packages" not in text


def test_what_conda_meta_tells(builder: Builder) -> None:
    found = by_path(builder.entries(builder.rows("python", "greet", "native"), OURS))
    meta = json.loads(content(found[f"{PREFIX}/conda-meta/greet-1.0-pyhd8ed1ab_0.json"]))
    assert meta["channel"] == builder.channel.url and meta["url"].startswith(f"{builder.channel.url}/noarch/greet")
    assert not {"link", "extracted_package_dir"} & meta.keys()
    assert f"lib/python{SERIES}/site-packages/greet/__init__.py" in meta["files"]
    native = json.loads(content(found[f"{PREFIX}/conda-meta/native-1.0-0.json"]))
    listed = {row["_path"]: row["path_type"] for row in native["paths_data"]["paths"]}
    assert sorted(listed) == native["files"]
    assert {name for name, kind in listed.items() if kind == "pyc_file"} == {
        OURS.path_of(f"lib/python{SERIES}/site-packages/native/__init__.py")
    }
    assert {f"{PREFIX}/{name}" for name in native["files"]} <= found.keys()


def test_rattler_reads_what_conda_meta_tells(builder: Builder, tmp_path: Path) -> None:
    from rattler import PrefixRecord

    found = by_path(builder.entries(builder.rows("python", "greet", "native"), OURS))
    for name in ("greet-1.0-pyhd8ed1ab_0", "native-1.0-0"):
        (tmp_path / f"{name}.json").write_bytes(content(found[f"{PREFIX}/conda-meta/{name}.json"]))
        record = PrefixRecord.from_path(tmp_path / f"{name}.json")
        assert record.name.normalized == name.partition("-")[0] and record.files


def test_bytecode_is_made_anew(builder: Builder) -> None:
    place = OURS.path_of(f"{LIB}/native/__init__.py")
    rows = builder.rows("python", "native", "greet")
    with_pyc = by_path(builder.entries(rows, OURS))
    assert content(with_pyc[place])[4] & 1, "by hash (PEP 552)"
    assert OURS.path_of(f"{LIB}/greet/__init__.py") in with_pyc
    assert OURS.path_of(f"{LIB}/native/broken.py") not in with_pyc
    assert not any("__pycache__" in path for path in by_path(builder.entries(rows)))


def test_the_same_layers_from_another_cache(builder: Builder, tmp_path: Path) -> None:
    rows = builder.rows(*NAMES, "native", "twin-a")

    def layers(one: Builder, rows: Sequence[CondaPackage]) -> list[Layer]:
        with one.fetched(rows, OURS) as below:
            return [LayerStore(one.cache).write(source, Compression.GZIP) for source in below.sources]

    made = layers(builder, rows)
    mask = os.umask(0o077)
    try:
        assert made == layers(Builder(tmp_path / "another", builder.channel), list(reversed(rows))) and len(made) > 1
    finally:
        os.umask(mask)
    # What was linked is gone, and the layers can still be read.
    store, sources = LayerStore(builder.cache), builder.below(builder.parts(), rows, OURS).sources
    known = [store.cached(source.key, Compression.GZIP) for source in sources]
    assert known == made
    for layer in made:
        tar = hashlib.sha256()
        for chunk in store.tar(layer):
            tar.update(chunk)
        assert f"sha256:{tar.hexdigest()}" == layer.diff_id


def test_condas_own_python_compiles(builder: Builder) -> None:
    parts = builder.parts()
    rows = builder.rows("oldstyle", "python")
    build = parts.own_build(Python(RUNNING, "conda"), this_platform(), rows)
    assert build is not None
    path = asyncio.run(unpacked_build(build))
    assert path == builder.cache / "pythons" / rows[1].sha256 / f"bin/python{SERIES}" and path.exists()
    shutil.rmtree(builder.cache / "archives")
    assert asyncio.run(unpacked_build(build)) == path
    assert parts.own_build(Python(RUNNING, "conda"), this_platform(), rows[:1]) is None


def test_only_what_is_not_known_is_linked(builder: Builder) -> None:
    rows = builder.rows("python", "filelock=3.16.1", "oldstyle", "twin-a")
    owners = builder.owners(rows)
    assert owners[f"{LIB}/filelock/__init__.py"] == "conda's filelock 3.16.1"
    whole = [rows_of(layer) for layer in builder.entries(rows)]
    builder.is_known = lambda source: "filelock" not in source.title
    builder.linked.clear()
    with builder.fetched(rows) as below:
        (mine,) = (source for source in below.sources if "filelock" in source.title)
        count = len(mine.packages)  # type: ignore[attr-defined]
        assert builder.linked[-1] == (count, count) and "python" not in mine.title
        # Without Python beside it, it goes where this environment's Python looks.
        assert rows_of(mine.entries()) in whole
        assert OwnedPathCache(builder.cache).owners(below.sources) == owners


def test_where_all_is_known_nothing_is_fetched(builder: Builder) -> None:
    rows = builder.rows("python", "greet")
    owners = builder.owners(rows)
    builder.is_known = lambda _: True
    gone = [replace(row, url="file:///nowhere/gone.conda") for row in rows]
    assert [replace(row, url=gone[0].url) for row in rows] == gone
    (builder.cache / "archives").rename(builder.cache / "elsewhere")
    assert builder.owners(rows) == owners
    assert not (builder.cache / "archives").exists()


def test_the_folder_that_was_linked_into_goes(builder: Builder) -> None:
    left = builder.cache / "conda-staging" / "0123"
    left.mkdir(parents=True)
    (left / "file").write_text("of a run that was killed")
    builder.owners(builder.rows("python"))
    assert list((builder.cache / "conda-staging").iterdir()) == []


def test_a_folder_that_another_run_uses_stays(builder: Builder) -> None:
    one, other = builder.parts(), builder.parts()
    for parts in (one, other):
        asyncio.run(builder.below(parts, builder.rows("python")).fetch())
    assert len(list((builder.cache / "conda-staging").iterdir())) == 2
    one.close()
    other.close()


# Whose a path is


@pytest.mark.parametrize("most", [1, 20])
def test_equal_files_are_in_both_layers(most: int, builder: Builder) -> None:
    """What is in a layer follows from its own packages alone."""
    rows = builder.rows("twin-a", "twin-b")
    layers = builder.entries(rows, most=most)
    having = [layer for layer in layers if any(entry.path == f"{PREFIX}/share/same.txt" for entry in layer)]
    assert len(having) == len(layers)
    owners = builder.owners(rows)
    assert owners[f"{PREFIX}/share/same.txt"] == "conda's twin-a 1.0"
    for layer in layers:
        for entry in layer:
            assert "__clobber" not in entry.path
            assert entry.data is None or b"__clobber" not in content(entry)


@pytest.mark.parametrize("most", [1, 20])
def test_different_files_at_one_path(most: int, builder: Builder) -> None:
    with pytest.raises(NoSolution) as caught:
        builder.owners(builder.rows("twin-a", "rival"), most)
    assert "opt/env/share/same.txt" in caught.value.message
    assert "conda's rival 1.0" in caught.value.message and "conda's twin-a 1.0" in caught.value.message


def test_links_stay_as_they_are(builder: Builder) -> None:
    found = by_path(builder.entries(builder.rows("linked")))
    assert found[f"{PREFIX}/lib64"].target == "lib"
    assert found[f"{PREFIX}/etc/there"].target == "/etc/os"


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("linked", "behind"), r"-1\.0-0\.conda: .*lib64/y.* behind .* link lib64"),
        (("outside",), r"outside-1\.0-0\.conda: it contains '\.\./\.\./out', which would be put outside of its folder"),
        (("absolute",), r"absolute-1\.0-0\.conda: it contains '/etc/out'"),
    ],
)
def test_what_would_be_written_elsewhere_is_refused(names: tuple[str, ...], what: str, builder: Builder) -> None:
    with pytest.raises(BadCondaPackage, match=what) as caught:
        builder.entries(builder.rows(*names))
    assert caught.value.exit_code == 5 and caught.value.hint


def test_a_file_behind_a_link_of_a_known_layer(builder: Builder) -> None:
    builder.owners(builder.rows("linked"))
    builder.owners(builder.rows("behind"))
    builder.is_known = lambda _: True
    with pytest.raises(NoSolution, match=r"opt/env/lib64 belongs to conda's linked 1\.0 and to conda's behind"):
        builder.owners(builder.rows("linked", "behind"))


# Keys


def test_keys_follow_from_the_rows(builder: Builder, tmp_path: Path) -> None:
    rows = builder.rows(*NAMES)
    keys = [source.key for source in builder.below(builder.parts(), rows).sources]
    assert keys == [
        source.key for source in Builder(tmp_path / "x", builder.channel).below(builder.parts(), rows).sources
    ]
    assert keys != [source.key for source in builder.below(builder.parts(), rows, OURS).sources]
    patched = [replace(rows[0], depends=("other",)), *rows[1:]]
    assert len(set(keys) & {source.key for source in builder.below(builder.parts(), patched).sources}) == len(keys) - 1
    reasons = [replace(row, required_by=(), provides=()) for row in rows]
    assert keys == [source.key for source in builder.below(builder.parts(), reasons).sources]


def test_an_archive_that_is_not_the_locked_one(builder: Builder) -> None:
    (row,) = builder.rows("oldstyle")
    with pytest.raises(NetworkError, match="is not the locked file"):
        builder.entries([replace(row, sha256="0" * 64)])
