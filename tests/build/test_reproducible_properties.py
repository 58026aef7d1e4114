"""Equal contents of wheels are equal bytes, however they were zipped."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.build.reproducible import normalise
from tests.support.builders.wheels import wheel

FILES = {"own/__init__.py": b"x = 1\n", "own/a.txt": b"", "own/z/deep.py": b"y\n" * 5000}


def normal(folder: Path, data: bytes) -> bytes:
    made, into = folder / "own-1.0-py3-none-any.whl", folder / "normal.whl"
    made.write_bytes(data)
    normalise(made, into, "own 1.0")
    return into.read_bytes()


def shuffled(data: bytes, order: list[int], year: int, mode: int) -> bytes:
    """The same wheel as another zip: other order, times, modes and packing, with entries for folders."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr(zipfile.ZipInfo("own/", (year, 1, 1, 0, 0, 0)), b"")
        names = old.namelist()
        for name in sorted(names, key=lambda name: order[names.index(name) % len(order)]):
            member = zipfile.ZipInfo(name, (year, 5, 6, 7, 8, 10))
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            member.comment = b"made today"
            new.writestr(member, old.read(name))
    return out.getvalue()


@given(
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.integers(1980, 2100),
    st.sampled_from([0o600, 0o644, 0o664, 0o666]),
)
def test_order_times_modes_and_packing_leave_no_trace(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], year: int, mode: int
) -> None:
    folder = tmp_path_factory.mktemp("wheels")
    plain = wheel("own", "1.0", files=FILES)
    assert normal(folder, shuffled(plain.data, order, year, mode)) == normal(folder, plain.data)
