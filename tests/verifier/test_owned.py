"""Files that two wheels own, by their RECORDs."""

from __future__ import annotations

from envspec.verifier.owned import Overlap, contents_of, overlaps, wheel_summary


def test_what_two_wheels_install_differently() -> None:
    records = {
        "one": b"a.py,sha256=aaaaaaaaaaaa,1\nsame.py,sha256=cc,1\none-1.data/scripts/tool,sha256=aa,1\n"
        b"one-1.data/headers/x.h,sha256=aa,1\nother.py,sha512=aa,1\none-1.dist-info/RECORD,,\n",
        "two": b"a.py,sha256=bbbbbbbbbbbb,1\nsame.py,sha256=cc,1\ntwo-1.data/scripts/tool,sha256=bb,1\nnew.py,,\n"
        b"two-1.data/headers/x.h,sha256=bb,1\nother.py,sha256=bb,1\n",
        "three": b"./a.py,sha256=aaaaaaaaaaaa,1\nthree-1.data/purelib/b.py,sha256=aa,1\n"
        b"three-1.data/data/etc/x,sha256=aa,1\n",
        "four": b"b.py,sha256=bb,1\nfour-1.data/data/etc/x,sha256=bb,1\nb.pyc,sha256=bb,1\nnew.py,sha256=bb,1\n",
        "apart": b"folder/a.py,sha256=aa,1\n",
        "none": b"",
    }
    tops = {name: wheel_summary(record, (), None)[1] for name, record in records.items()}
    asked: list[str] = []

    def files(name: str) -> dict[str, str]:
        asked.append(name)
        return contents_of(records[name], ())

    assert overlaps(tops, files) == [
        Overlap("<data>/bin/tool", {"one": "aa      ", "two": "bb      "}),
        Overlap("<data>/etc/x", {"four": "bb      ", "three": "aa      "}),
        Overlap("a.py", {"one": "aaaaaaaa", "three": "aaaaaaaa", "two": "bbbbbbbb"}),
        Overlap("b.py", {"four": "bb      ", "three": "aa      "}),
    ]
    assert asked == ["four", "one", "three", "two"]


def test_files_that_record_does_not_list_as_they_are() -> None:
    records = {"one": b"a/x.py,sha256=aa,1\na/y.py,sha256=aa,1\n", "two": b"b/x.py,sha256=aa,1\na/y.py,sha256=bb,1\n"}
    wrong: list[tuple[str, str | None]] = [("a/x.py", "ff" * 32), ("a/y.py", None)]
    tops = {"one": wheel_summary(records["one"], (), None)[1], "two": wheel_summary(records["two"], wrong, None)[1]}
    files = {"one": contents_of(records["one"], ()), "two": contents_of(records["two"], wrong)}
    assert tops == {"one": {"a"}, "two": {"a", "b"}}
    assert overlaps(tops, files.__getitem__) == [Overlap("a/x.py", {"one": "aa      ", "two": "________"})]
