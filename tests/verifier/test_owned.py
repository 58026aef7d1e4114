"""Files that two wheels own, by their RECORDs."""

from __future__ import annotations

from envspec.verifier.owned import Overlap, overlaps, packed
from envspec.verifier.record import wheel_entries


def test_what_two_wheels_install_differently() -> None:
    records = {
        "one": b"a.py,sha256=aaaaaaaaaaaa,1\nsame.py,sha256=cc,1\none-1.data/scripts/tool,sha256=aa,1\n"
        b"one-1.data/headers/x.h,sha256=aa,1\nother.py,sha512=aa,1\none-1.dist-info/RECORD,,\n",
        "two": b"a.py,sha256=bbbbbbbbbbbb,1\nsame.py,sha256=cc,1\ntwo-1.data/scripts/tool,sha256=bb,1\nnew.py,,\n"
        b"two-1.data/headers/x.h,sha256=bb,1\nother.py,sha256=bb,1\n",
        "three": b"./a.py,sha256=aaaaaaaaaaaa,1\nthree-1.data/purelib/b.py,sha256=aa,1\n"
        b"three-1.data/data/etc/x,sha256=aa,1\n",
        "four": b"b.py,sha256=bb,1\nfour-1.data/data/etc/x,sha256=bb,1\nb.pyc,sha256=bb,1\nnew.py,sha256=bb,1\n",
        "none": b"",
    }
    lists = {name: packed(wheel_entries(record)) for name, record in records.items()}
    asked: list[str] = []

    def paths_of(name: str) -> bytes:
        asked.append(name)
        return lists[name][1]

    found = overlaps({name: rows for name, (rows, _) in lists.items()}, paths_of)
    assert found == [
        Overlap("<data>/bin/tool", {"one": "aa      ", "two": "bb      "}),
        Overlap("<data>/etc/x", {"four": "bb      ", "three": "aa      "}),
        Overlap("a.py", {"one": "aaaaaaaa", "three": "aaaaaaaa", "two": "bbbbbbbb"}),
        Overlap("b.py", {"four": "bb      ", "three": "aa      "}),
    ]
    assert sorted(asked) == ["four", "one"]
