"""What an index holds, and how it talks: values only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from tests.support.builders.wheels import Artifact


class Pages(Enum):
    """In which form project pages come."""

    HTML = "HTML whatever the client accepts"
    JSON = "JSON whatever the client accepts"
    BY_ACCEPT = "JSON where Accept names it, HTML else"
    HTML_DATED_BY_ACCEPT = "HTML whatever the client accepts, with upload times only where Accept names JSON"


class Times(Enum):
    """Whether files show when they were uploaded."""

    SHOWN = "shown"
    HIDDEN = "hidden"


class Hashes(Enum):
    SHA256 = "sha256"
    MD5 = "md5"
    NONE = "none"


class Sizes(Enum):
    """Whether JSON pages give sizes (PEP 700)."""

    SHOWN = "shown"
    HIDDEN = "hidden"


class Hrefs(Enum):
    RELATIVE = "../../files/…"
    ROOTED = "/files/…"
    ABSOLUTE = "http://127.0.0.1:port/files/…"
    BASE = "relative to a <base> element (HTML only; JSON is rooted)"


class MetadataFiles(Enum):
    """PEP 658: whether `FILE.metadata` is announced, and whether it is there."""

    CORE = "data-core-metadata with its hash"
    DIST_INFO = "data-dist-info-metadata with its hash (PEP 658's first name)"
    TRUE = "announced as true, without a hash"
    NONE = "not announced, 404"
    SILENT = "not announced, but there"
    MISSING = "announced, but 404"


class Ranges(Enum):
    """What a Range request on a file gets."""

    ALL = "206"
    NO_SUFFIX_416 = "206, but 416 for `bytes=-N`"
    NO_SUFFIX_501 = "206, but 501 for `bytes=-N`"
    IGNORED = "200 and the whole file"


class Caching(Enum):
    ETAG = "ETag, and 304 where it matches"
    NONE = "no cache headers"


class Compression(Enum):
    GZIP = "gzip for pages where Accept-Encoding names it"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one index talks. The default is the friendliest index there is."""

    pages: Pages = Pages.BY_ACCEPT
    times: Times = Times.SHOWN
    hashes: Hashes = Hashes.SHA256
    sizes: Sizes = Sizes.SHOWN
    hrefs: Hrefs = Hrefs.RELATIVE
    metadata: MetadataFiles = MetadataFiles.CORE
    ranges: Ranges = Ranges.ALL
    caching: Caching = Caching.ETAG
    compression: Compression = Compression.GZIP


#: An index of static pages, as a web server's directory of wheels gives: nothing but links and hashes.
PLAIN = Dialect(
    pages=Pages.HTML,
    times=Times.HIDDEN,
    metadata=MetadataFiles.NONE,
    sizes=Sizes.HIDDEN,
    caching=Caching.NONE,
    compression=Compression.NONE,
)

#: A caching mirror that answers HTML only, dates it for those who ask for JSON, and knows neither PEP 658 nor ETags.
MIRROR = Dialect(
    pages=Pages.HTML_DATED_BY_ACCEPT,
    hrefs=Hrefs.ABSOLUTE,
    metadata=MetadataFiles.NONE,
    caching=Caching.NONE,
    compression=Compression.NONE,
)


def day(text: str) -> datetime:
    """`2025-03-01` as the noon of that day, UTC."""
    return datetime.fromisoformat(text).replace(hour=12, tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True)
class File:
    """One file of a project, as its page shows it.

    uploaded: None where the index does not tell it (yet). yanked: None, or the reason (`` for none given).
    claimed_sha256: what the page says where that is not the file's hash.
    """

    artifact: Artifact
    uploaded: datetime | None = field(default_factory=lambda: day("2024-01-01"))
    yanked: str | None = None
    claimed_sha256: str | None = None

    @property
    def name(self) -> str:
        return self.artifact.name

    @property
    def filename(self) -> str:
        return self.artifact.filename

    @property
    def sha256(self) -> str:
        return self.claimed_sha256 or self.artifact.sha256


def by_name(files: Iterable[File]) -> dict[str, tuple[File, ...]]:
    """Normalised project name -> its files, in the order given."""
    projects: dict[str, list[File]] = {}
    for file in files:
        projects.setdefault(file.name, []).append(file)
    return {name: tuple(found) for name, found in projects.items()}
