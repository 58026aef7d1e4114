"""The fast reader of RECORD and the one of CSV find the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.verifier.owned import contents_of, wheel_summary
from envspec.verifier.record import (
    BadRecord,
    entries_sha256,
    installed_from,
    plain_rows,
    plain_summary,
    wheel_entries,
    wheel_sha256,
)

HASH = "sha256=" + "Ab-_0" * 8 + "xyz"
OWN = "a-1.dist-info/RECORD,,\n"
INFO = ("METADATA", "INSTALLER", "RECORD", "RECORD.jws", "licenses/INSTALLER", "sboms/a.json")
#: Paths as wheels have them, and parts of such as they should not.
USUAL = st.sampled_from(
    [
        *("a.py", "a/__init__.py", "a/b/c d.so", "a-1/x", "a0", "b+c/d~e.h", "a-1.data/purelib/a.py", "a-1.data/x"),
        *(
            "a-1.data/data/share/a",
            "a-1.data/data/bin/a",
            "a-1.data/scripts/a",
            "a-1.data/headers/a",
            "b/a.data/data/c",
        ),
        *("a-1.data/data/lib/python3.11/site-packages/a.py", "a-1.data/platlib/a-1.data/data/x"),
        *(f"a-1.dist-info/{name}" for name in INFO),
    ]
)
PARTS = [
    *(
        "a",
        "b",
        "/",
        "/",
        ".",
        "..",
        "\\",
        '"',
        ",",
        "<data>/",
        "bin/",
        ".pyc",
        ".data/",
        "data/",
        "scripts/",
        " ",
        "#",
    ),
    *(
        "a.dist-info/",
        "REQUESTED",
        "RECORD",
        "\xe9",
        "\u2028",
        "\x85",
        "\x0b",
        "\x1c",
        "\0",
        "\r",
        "\n",
        "\ud800",
        "\x7f",
    ),
]
PATHS = USUAL | st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
HASHES = st.sampled_from(
    [HASH, HASH, HASH, HASH.lower(), "", HASH + "=", "sha256=", "sha256=aa", "md5=aa", "sha512=aa"]
)
SIZES = st.sampled_from(
    ["1", "1", "1", "007", "", "-1", "1.0", " 1", "\xb2", "\u0663", "9" * 18, "9" * 19, "9" * 5000, "x"]
)
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r\n", "\r", "\n\n", ",\n", ""])
USUAL_ROWS = st.tuples(USUAL, st.just(HASH), st.sampled_from(["0", "12"]), st.sampled_from(["\n", "\r\n"]))
ODD_ROWS = st.tuples(PATHS, HASHES, SIZES, ENDS)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """RECORDs: most rows as tools write them; some twice, some odd, and bytes that are no UTF-8."""
    drawn = draw(st.lists(USUAL_ROWS, max_size=6)) + draw(st.lists(ODD_ROWS, max_size=2))
    rows = [f"{path},{digest},{size}{end}" for path, digest, size, end in drawn]
    rows += draw(st.lists(st.sampled_from([OWN, OWN, "a/b.dist-info/RECORD,,\n", "a.py,,\n", "\n"]), max_size=1))
    rows = draw(st.permutations(rows))
    return "".join(rows + draw(st.lists(st.sampled_from(rows), max_size=1) if rows else st.just([]))).encode(
        errors="surrogatepass"
    )


@given(records())
def test_both_readers_agree(record: bytes) -> None:
    rows = plain_rows(record)
    if rows is None:
        return
    entries = wheel_entries(record)
    digest, tops = plain_summary(rows)
    assert digest == entries_sha256(entries)
    hashed = [entry for entry in entries if entry.algorithm]
    assert [(path.decode(), int(size)) for _, path, size in rows] == [(each.path, each.size_bytes) for each in hashed]
    places = filter(None, (installed_from(each.path) for each in hashed))
    assert tops == {place.partition("/")[0] for place in places}
    # A file that does not exist keeps it from the fast reader.
    assert contents_of(record, []) == contents_of(record, [("missing", None)])


@given(records(), st.lists(st.tuples(PATHS, st.sampled_from([None, "00" * 32])), max_size=2))
def test_what_is_stored_of_any_record(record: bytes, wrong: list[tuple[str, str | None]]) -> None:
    try:
        entries = wheel_entries(record)
    except BadRecord:
        with pytest.raises(BadRecord):
            wheel_summary(record, wrong, None)
        return
    digest, tops = wheel_summary(record, wrong, None)
    assert digest == entries_sha256(entries, [path for path, sha256 in wrong if sha256 is None])
    assert {path.partition("/")[0] for path in contents_of(record, wrong)} <= tops


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_usual_records_are_read_fast(end: str) -> None:
    paths = ["a-1.dist-info/METADATA", "a-1.dist-info/INSTALLER", "a/b-c_d+e.so", "a.py", "a/x y.py", "b/[1]{2}.txt"]
    record = "".join([f"{path},{HASH},12{end}" for path in paths] + ["a-1.dist-info/RECORD,,", end]).encode()
    rows = plain_rows(record)
    assert rows is not None
    assert plain_summary(rows) == (wheel_sha256(record), {"a", "a.py", "a-1.dist-info", "b"})
