"""Index pages, in HTML and JSON.

Sources: PEP 503 (HTML), PEP 592 (yanked), PEP 629 (version), PEP 658 and 714 (core metadata), PEP 691 and 700 (JSON,
sizes, upload times). Some indexes give upload times in HTML as `data-upload-time`, which no PEP describes.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache, partial
from typing import Any, Final
from urllib.parse import unquote, urljoin

import msgspec

from envspec.documents import check_json, parse_json
from envspec.names import FILE_NAME, LONGEST, SDIST, SHA256, URL, WHEEL, is_harmful

ACCEPT: Final = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"

#: The largest projects of the default index have below 30,000.
MOST_FILES: Final = 100_000

# Time is linear in the page, whatever it contains: no part of a link extends past the beginning of the next.
# Nearly all links have no element in them and no "<" in their attributes: the first branch, twice as fast as the rest.
# Attribute values may contain ">" unescaped: quoted runs are matched whole. The loops are unrolled and bounded, since
# `re` needs 100 bytes of memory for each iteration: no real link has so many attributes or elements.
_QUOTED: Final = r""""[^"<]*(?:<(?!a\b)[^"<]*){0,99}"|'[^'<]*(?:<(?!a\b)[^'<]*){0,99}'"""
_ANCHOR = re.compile(
    rf"""<a\b(?:([^<]*)|([^<>"']*(?:(?:{_QUOTED})[^<>"']*){{0,99}})>([^<]*(?:<(?!/?a\b)[^<]*){{0,99}}))</a\s*>""",
    re.IGNORECASE,
)
_LINK = re.compile(r"<a\b", re.IGNORECASE)
#: Characters searched at once: Ctrl-C is handled in between.
_SLICE: Final = 1 << 20
_TAG = re.compile(r"<[^<>]*>")
_OPENING = re.compile(r"<(?:html|body)\b", re.IGNORECASE)
_CLOSING = re.compile(r"</(?:html|body)\s*>", re.IGNORECASE)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[zZ]|[+-]\d\d:?\d\d)?")
#: In characters; the longest on the default index have 100.
_LONGEST_PYTHON: Final = 4096
SDIST_SUFFIXES: Final = (".tar.gz", ".zip")
_SUFFIXES = (".whl", ".gz", ".zip")
#: With those of formats that no installer takes any more.
_RELEASE_SUFFIXES: Final = (*_SUFFIXES, ".egg", ".exe", ".msi", ".tgz", ".tar.bz2", ".tar.xz", ".tar.Z", ".rpm", ".deb")
# Sdists, and files of other kinds, which show that a release exists.
_OTHER = re.compile(rf"{SDIST.pattern}|(?!.*(?:\.whl|\.gz|\.zip)$){FILE_NAME.pattern}")
_LISTED = re.compile(rf"{WHEEL.pattern}|{_OTHER.pattern}")
# The parts of a wheel's name in `_LISTED`: what is before the first dash, between the first two, and after them.
_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+]*")
_TAIL = re.compile(r"(?:[0-9][A-Za-z0-9_.]*-)?[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+\.whl")
_ATTRIBUTE = re.compile(r"""([a-zA-Z-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))|([a-zA-Z-]+)""")
_ABSOLUTE = re.compile(r"https?://[A-Za-z0-9._-]+(?::[0-9]+)?/")
#: PEP 629.
_MARK = re.compile(r"""<meta\b[^<>]*\bname\s*=\s*["']?pypi:repository-version\b""", re.IGNORECASE)
_BASE = re.compile(r"""<base\b[^<>]*\bhref\s*=\s*["']([^"'<]+)["']""", re.IGNORECASE)


class ListedFile(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One file of a page.

    url: absolute.
    sha256: None if the index gives none.
    size_bytes: None in HTML.
    uploaded: ISO 8601 as the index writes it.
    metadata_sha256: of the `.metadata` file beside it; "" if that has no hash, None if there is no such file.
    """

    filename: str
    url: str
    sha256: str | None = None
    size_bytes: int | None = None
    uploaded: str | None = None
    requires_python: str | None = None
    yanked: str | None = None
    metadata_sha256: str | None = None

    @property
    def is_wheel(self) -> bool:
        return self.filename.endswith(".whl")


class BadPage(ValueError):
    """The body is not an index page."""


class NameGroups(msgspec.Struct, frozen=True):
    """The names of a page. Those of one stack are 70,000: they differ in few projects, versions and tags.

    projects: of the wheels, as they are written.
    versions: the numbers of the wheels, by their versions as they are written.
    tails: the same by what follows the version: build, tags and `.whl`.
    others: the numbers of all other files.
    """

    projects: set[str] = msgspec.field(default_factory=set)
    versions: defaultdict[str, list[int]] = msgspec.field(default_factory=partial(defaultdict, list))
    tails: dict[str, list[int]] = msgspec.field(default_factory=dict)
    others: list[int] = msgspec.field(default_factory=list)


def _group(names: Iterable[str]) -> NameGroups:
    groups = NameGroups()
    projects, versions, tails = groups.projects, groups.versions, groups.tails
    for number, name in enumerate(names):
        parts = name.split("-", 2)
        tail = parts[-1]
        if tail not in tails:
            if len(parts) < 3 or not _TAIL.fullmatch(tail):
                groups.others.append(number)
                continue
            tails[tail] = []
        tails[tail].append(number)
        versions[parts[1]].append(number)
        projects.add(parts[0])
    return groups


@dataclass(frozen=True)
class PageListing:
    """All files of a project, each read on demand: a page may list thousands.

    names: file names in the page's order, without odd wheels and sdists that no installer takes.
    file: reads the file of that number; raises BadPage if it cannot be read or its name could do harm.
    """

    names: tuple[str, ...]
    file: Callable[[int], ListedFile]

    @cached_property
    def groups(self) -> NameGroups:
        return _group(self.names)

    def only(self, numbers: Sequence[int]) -> PageListing:
        """The listing of these files alone."""
        return PageListing(tuple([self.names[number] for number in numbers]), lambda number: self.file(numbers[number]))

    def is_usual(self) -> bool:
        """Whether all names are of `_LISTED`'s form, without a look at each."""
        groups = self.groups
        others = [self.names[number] for number in groups.others]
        return (
            all(map(_PROJECT.fullmatch, groups.projects))
            and all(map(_VERSION.fullmatch, groups.versions))
            and all(map(_OTHER.fullmatch, others))
        )


def parse_page(body: bytes, content_type: str, url: str) -> PageListing:
    """Read a project page; raises BadPage if it is neither a JSON nor an HTML one."""
    try:
        is_json = "json" in content_type.partition(";")[0]
        names, read = parse_typed_json(body, url) if is_json else _parse_html(body, url)
    except BadPage:
        raise
    except _MALFORMED as error:
        raise BadPage(f"not a package index page: {error}") from error

    # The targets of one lock read mostly the same files.
    known: dict[int, ListedFile] = {}

    def file(number: int) -> ListedFile:
        if number in known:
            return known[number]
        try:
            known[number] = _check(read(number))
            return known[number]
        except _MALFORMED as error:
            shown = names[number]
            if is_harmful(shown):
                shown = repr(shown)
            raise BadPage(f"its entry of {shown} cannot be read: {error}") from error

    listing = PageListing(names, file)
    if listing.is_usual():
        return listing
    kept: list[int] = []
    for number, name in enumerate(names):
        # A harmful name stays in: if it counts for a target, the whole page is refused.
        if _LISTED.fullmatch(name) or is_harmful(name):
            kept.append(number)
    return listing.only(kept)


#: Raised by reading JSON or HTML of another form: ValueError for bad text, numbers and URLs.
_MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError)
_Parsed = tuple[tuple[str, ...], Callable[[int], ListedFile]]
#: A project without files is rare, the page of a login or of a server's maintenance is not.
_NO_FILE: Final = "not a package index page: it lists no file, and does not state that it is of an index"


#: File name, SHA-256, day and time of the upload, and URL of nearly all files.
_USUAL: Final = re.compile(
    rf"{FILE_NAME.pattern} {SHA256.pattern} \d{{4}}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])"
    rf"T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?Z (?=https?://){URL.pattern}"
)


def _is_usual(file: ListedFile) -> bool:
    """Whether `_check` accepts the file, by one pattern; False if it has to look at each value."""
    size, python = file.size_bytes, file.requires_python
    return (
        _USUAL.fullmatch(f"{file.filename} {file.sha256} {file.uploaded} {file.url}") is not None
        and len(file.filename) <= LONGEST
        and len(file.url) <= URL.longest
        and type(size) is int
        and size >= 0
        and (python is None or (isinstance(python, str) and len(python) <= _LONGEST_PYTHON))
    )


def _check(file: ListedFile) -> ListedFile:
    """The file, if all its values that reach a lock are valid."""
    if _is_usual(file):
        return file
    if not FILE_NAME.fits(file.filename):
        raise ValueError("its file name could lead out of a folder or break a line")
    if not file.url.startswith(("https://", "http://")) or not URL.fits(file.url):
        raise ValueError(f"{file.url!r} is no http(s) address")
    if file.sha256 is not None and not SHA256.fits(file.sha256):
        raise ValueError(f"{file.sha256!r} is no SHA-256")
    if file.uploaded is not None:
        if not _TIME.fullmatch(file.uploaded):
            raise ValueError(f"{file.uploaded!r} is no upload time")
        datetime.fromisoformat(file.uploaded[:19])
    if file.size_bytes is not None and (not isinstance(file.size_bytes, int) or file.size_bytes < 0):
        raise ValueError(f"{file.size_bytes!r} is no size")
    python = file.requires_python
    if python is not None and not (isinstance(python, str) and len(python) <= _LONGEST_PYTHON):
        raise ValueError(f"{str(python)[:80]!r} is no Python version")
    return file


class _Hashes(msgspec.Struct, frozen=True, gc=False):
    sha256: str | msgspec.UnsetType | None = msgspec.UNSET


#: PEP 714's key, PEP 691's, and the one that large indexes sent between the two.
_METADATA_KEYS: Final = ("core-metadata", "dist-info-metadata", "data-dist-info-metadata")
_Stated = bool | _Hashes | msgspec.UnsetType | None


class _Entry(msgspec.Struct, gc=False, rename=lambda name: name.replace("_", "-")):
    """A file of a JSON page, as PEP 691, 700 and 714 type it."""

    filename: str
    url: str
    hashes: _Hashes = _Hashes()
    #: Not an int alone, which takes 5.0 for 5.
    size: int | float | None = None
    upload_time: str | None = None
    requires_python: str | None = None
    yanked: bool | str | None = None
    core_metadata: _Stated = msgspec.UNSET
    dist_info_metadata: _Stated = msgspec.UNSET
    data_dist_info_metadata: _Stated = msgspec.UNSET

    def read(self, page: str) -> ListedFile:
        """page: its URL."""
        yanked, sha256 = self.yanked, self.hashes.sha256
        if not isinstance(yanked, str):
            yanked = "" if yanked else None
        metadata = self.core_metadata
        if metadata is msgspec.UNSET:
            metadata = self.dist_info_metadata
        if metadata is msgspec.UNSET:
            metadata = self.data_dist_info_metadata
        metadata_sha256: str | None = None
        if isinstance(metadata, _Hashes):
            metadata_sha256 = "" if isinstance(metadata.sha256, msgspec.UnsetType) else metadata.sha256
        elif metadata is True:
            metadata_sha256 = ""
        return ListedFile(
            self.filename,
            _join(page, self.url),
            sha256.lower() if isinstance(sha256, str) else None,
            self.size,  # type: ignore[arg-type]  # a float is refused by `_check`
            self.upload_time,
            self.requires_python or None,
            yanked,
            metadata_sha256,
        )


class _Meta(msgspec.Struct, frozen=True, gc=False, rename={"version": "api-version"}):
    version: str | None = None


class _JsonPage(msgspec.Struct, gc=False):
    files: list[_Entry]
    meta: _Meta = _Meta()


@lru_cache(maxsize=1)
def _decoder() -> msgspec.json.Decoder[_JsonPage]:
    return msgspec.json.Decoder(_JsonPage)


def parse_typed_json(body: bytes, url: str) -> _Parsed:
    """As `parse_any_json`, in a fifth of the time and memory: reads the fields above alone."""
    check_json(body)
    try:
        # The decoder reads the bytes of values alone that have a field.
        if not body.isascii():
            body.decode()
        page = _decoder().decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # One entry of another form does not matter unless it counts for a target.
        return parse_any_json(body, url)
    _check_version(page.meta.version)
    entries = page.files
    _check_count(len(entries))
    names = tuple([entry.filename for entry in entries])
    _check_has_file(names, page.meta.version)
    return names, lambda number: entries[number].read(url)


def parse_any_json(body: bytes, url: str) -> _Parsed:
    """A page with values of any form; raises any of _MALFORMED, and so does reading one of its files."""
    document: dict[str, Any] = parse_json(body)
    version = document.get("meta", {}).get("api-version")
    _check_version(version)
    entries: list[dict[str, Any]] = document["files"]
    _check_count(len(entries))

    def read(number: int) -> ListedFile:
        entry = entries[number]
        yanked = entry.get("yanked", False)
        if not isinstance(yanked, str):
            yanked = "" if yanked else None
        sha256 = entry.get("hashes", {}).get("sha256")
        if sha256 is not None:
            sha256 = sha256.lower()
        return ListedFile(
            filename=entry["filename"],
            url=_join(url, entry["url"]),
            sha256=sha256,
            size_bytes=entry.get("size"),
            uploaded=entry.get("upload-time"),
            requires_python=entry.get("requires-python") or None,
            yanked=yanked,
            metadata_sha256=_metadata_sha256(entry),
        )

    names = tuple([entry["filename"] for entry in entries])
    if not set(map(type, names)) <= {str}:
        raise BadPage("not a package index page: a file without a name")
    _check_has_file(names, version)
    return names, read


def _check_version(version: object) -> None:
    if version is not None and str(version).partition(".")[0] != "1":
        raise BadPage(f"index API version {repr(str(version))[1:-1]} is newer than the supported 1.x")


def _check_has_file(names: Iterable[str], version: object) -> None:
    if version is None and not _has_file(names):
        raise BadPage(_NO_FILE)


def _metadata_sha256(entry: dict[str, Any]) -> str | None:
    """As `ListedFile.metadata_sha256`."""
    for key in _METADATA_KEYS:
        if key not in entry:
            continue
        stated = entry[key]
        if isinstance(stated, dict):
            sha256: str | None = stated.get("sha256", "")
            return sha256
        return "" if stated else None
    return None


def _parse_html(body: bytes, url: str) -> _Parsed:
    text = body.decode("utf-8")
    opened = _OPENING.search(text)
    if not opened and "<a" not in text:
        raise BadPage("not a package index page: no HTML in it")
    # Without Content-Length, a broken connection looks like a complete page, with older releases alone.
    if opened:
        is_complete = _CLOSING.search(text, max(0, len(text) - 4096)) is not None
    else:
        is_complete = "<a" not in text[text.rfind("</") :]
    if not is_complete:
        raise BadPage("it ends in the middle")
    root = url
    if base := _BASE.search(text):
        root = urljoin(url, html.unescape(base[1]))
    anchors = _anchors(text)

    def read(number: int) -> ListedFile:
        attributes = _attributes(anchors[number][0])
        href, _, fragment = attributes.get("href", "").partition("#")
        algorithm, _, digest = fragment.partition("&")[0].partition("=")
        metadata = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
        metadata_sha256 = None
        if metadata is not None and metadata != "false":
            metadata_sha256 = metadata.partition("sha256=")[2]
        return ListedFile(
            filename=names[number],
            url=_join(root, href),
            sha256=digest.lower() if algorithm == "sha256" else None,
            size_bytes=None,
            uploaded=attributes.get("data-upload-time"),
            requires_python=attributes.get("data-requires-python") or None,
            yanked=attributes.get("data-yanked"),
            metadata_sha256=metadata_sha256,
        )

    names = tuple([_filename(attributes, label) for attributes, label in anchors])
    if not _has_file(names) and not _MARK.search(text):
        raise BadPage(_NO_FILE)
    return names, read


def _has_file(names: Iterable[str]) -> bool:
    return any(name.endswith(_RELEASE_SUFFIXES) for name in names)


def _anchors(text: str) -> list[tuple[str, str]]:
    """Attributes and label of each link."""
    found: list[tuple[str, str]] = []
    begin = 0
    while begin < len(text):
        link = _LINK.search(text, begin + _SLICE)
        end = link.start() if link else len(text)
        for plain, attributes, label in _ANCHOR.findall(text, begin, end):
            if plain:
                before, _, after = plain.rpartition(">")
                found.append((before, after))
            else:
                found.append((attributes, label))
        _check_count(len(found))
        begin = end
    return found


def _check_count(files: int) -> None:
    if files > MOST_FILES:
        raise BadPage(f"it lists more than {MOST_FILES} files")


def _join(page: str, href: str) -> str:
    # Nearly all pages of large indexes have absolute URLs; urljoin takes 20 us, for thousands of files. It refuses odd
    # hosts, which must not pass for absolute ones.
    if _ABSOLUTE.match(href):
        return href
    return urljoin(page, href)


def _filename(attributes: str, label: str) -> str:
    """The text of the anchor (PEP 503), else the end of its URL."""
    if label.endswith(_SUFFIXES):
        return label
    name = html.unescape(_TAG.sub("", label).strip())
    if name.endswith(_SUFFIXES):
        return name
    return unquote(_attributes(attributes).get("href", "").partition("#")[0].rpartition("/")[2])


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, double, single, plain, bare in _ATTRIBUTE.findall(text):
        value = double or single or plain
        if "&" in value:
            value = html.unescape(value)
        found[(name or bare).lower()] = value
    return found
