"""Files that wheels install at one path with different content: which wheels and files, from their RECORDs alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from envspec.verifier.record import (
    PlainRow,
    entries_sha256,
    from_hex,
    installed_from,
    plain_rows,
    plain_summary,
    wheel_entries,
    wheel_path,
)


class Overlap(NamedTuple):
    """A file that packages install with different content.

    path: relative to site-packages, or to the environment after `record.DATA`.
    contents: package -> the first 8 characters of its content's hash as in RECORD.
    """

    path: str
    contents: Mapping[str, str]


def wheel_summary(
    record: bytes, wrong: Iterable[tuple[str, str | None]], rows: Iterable[PlainRow] | None
) -> tuple[str | None, set[str]]:
    """The digest of a wheel (`wheel_sha256`), and the first parts of the paths of its files.

    wrong: files that are not as RECORD lists them, and their SHA-256 (hexadecimal); None for one that does not exist.
    rows: of the record, if they were read already.

    Raises:
        BadRecord
    """
    absent = {path for path, sha256 in wrong if sha256 is None}
    if rows is None:
        rows = plain_rows(record)
    if rows is not None and not absent:
        digest, tops = plain_summary(rows)
        return digest, tops.union(_top(path) for path, _ in wrong)
    entries = wheel_entries(record)
    paths = [path for path, _ in wrong]
    paths.extend(filter(None, (installed_from(entry.path) for entry in entries)))
    return entries_sha256(entries, absent), set(map(_top, paths))


def _top(path: str) -> str:
    return path.partition("/")[0]


def contents_of(record: bytes, wrong: Collection[tuple[str, str | None]]) -> dict[str, str]:
    """The files of a wheel with a SHA-256, and the content of each as in `Overlap`.

    wrong: see `wheel_summary`.
    """
    contents: dict[str, str] = {}
    rows = plain_rows(record)
    if rows is not None and not wrong:
        for line, raw, _ in rows:
            if path := installed_from(raw.decode()):
                # The last 43 characters are the hash.
                contents[path] = _content(line[-43:].decode())
        return contents
    absent = {path for path, sha256 in wrong if sha256 is None}
    for entry in wheel_entries(record):
        path = installed_from(entry.path)
        if path and entry.algorithm == "sha256" and entry.digest and wheel_path(entry.path) not in absent:
            contents[path] = _content(entry.digest)
    for path, sha256 in wrong:
        if sha256:
            contents[path] = _content(from_hex(sha256))
    return contents


def _content(digest: str) -> str:
    return digest.encode("ascii", "replace")[:8].ljust(8).decode()


def overlaps(tops: Mapping[str, Collection[str]], files_of: Callable[[str], Mapping[str, str]]) -> list[Overlap]:
    """Every file in which packages differ, sorted, with all packages that have it.

    tops: package -> the first parts of its paths (`wheel_summary`).
    files_of: a package's files (`contents_of`); called only for those that share a first part.
    """
    packages: dict[str, list[str]] = {}
    for name in sorted(tops):
        for top in tops[name]:
            packages.setdefault(top, []).append(name)
    shared = {top: names for top, names in packages.items() if len(names) > 1}
    contents: dict[str, dict[str, str]] = {}
    for name in sorted(set(chain.from_iterable(shared.values()))):
        for path, content in files_of(name).items():
            if _top(path) in shared:
                contents.setdefault(path, {})[name] = content
    found = [Overlap(path, of_packages) for path, of_packages in contents.items() if len({*of_packages.values()}) > 1]
    return sorted(found, key=lambda each: each.path)
