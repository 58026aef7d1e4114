"""The distributions in a site-packages folder, as `*.dist-info` and `*.egg-info` tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.installed.record import BadRecord, Row, rows

_RELEASE: Final = re.compile(
    r"v?(?:(\d+)!)?(\d+(?:\.\d+)*)[-_.]?((?:a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?"
    r"((?:-\d+)|(?:[-_.]?(?:post|rev|r)[-_.]?\d*))?([-_.]?dev[-_.]?\d*)?(?:\+(.+))?",
    re.IGNORECASE,
)
_SPELLINGS: Final = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc", "rev": "post", "r": "post"}


@dataclass(frozen=True)
class Distribution:
    """folder: `<name>.dist-info`. name: in PEP 503's form. rows: None where its RECORD is missing or can't be read;
    fault says why.
    """

    site: Path
    folder: str
    name: str
    version: str
    rows: tuple[Row, ...] | None
    fault: str = ""


def normalised(name: str) -> str:
    """PEP 503's form of a name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(one: str, other: str) -> bool:
    """Whether two spellings are one version by PEP 440: `1.0` and `1.0.0`, `1.0-1` and `1.0.post1`."""
    return one == other or _version_key(one) == _version_key(other)


def _version_key(text: str) -> tuple[object, ...]:
    found = _RELEASE.fullmatch(text.strip())
    if not found:
        return (text.strip().lower(),)
    epoch, release, pre, post, dev, local = found.groups()
    numbers = [int(number) for number in release.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    post = f"post{post[1:]}" if post and re.fullmatch(r"-\d+", post) else post
    own = tuple(int(part) if part.isdigit() else part for part in re.split(r"[-_.]", (local or "").lower()))
    return (int(epoch or 0), tuple(numbers), *map(_stage, (pre, post, dev)), own)


def _stage(text: str | None) -> tuple[str, int] | None:
    found = re.fullmatch(r"[-_.]?([a-z]+)[-_.]?(\d*)", text.lower()) if text else None
    return (_SPELLINGS.get(found[1], found[1]), int(found[2] or 0)) if found else None


def distributions(site: Path) -> Iterator[Distribution]:
    """Everything that calls itself installed in a folder, sorted.

    Raises:
        OSError: the folder can't be read.
    """
    for name in sorted(entry.name for entry in site.iterdir()):
        if name.endswith((".dist-info", ".egg-info", ".egg-link")):
            yield _distribution(site, name)


def _distribution(site: Path, folder: str) -> Distribution:
    name, version = _named(site / folder)
    if not folder.endswith(".dist-info"):
        return Distribution(site, folder, name, version, None, "it has no RECORD, as what setuptools installs itself")
    try:
        text = (site / folder / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
        return Distribution(site, folder, name, version, tuple(rows(text)))
    except FileNotFoundError:
        return Distribution(site, folder, name, version, None, "it has no RECORD")
    except (OSError, BadRecord) as fault:
        return Distribution(site, folder, name, version, None, str(fault))


def _named(folder: Path) -> tuple[str, str]:
    """Name and version from METADATA, else from the folder's name."""
    stem = folder.name.rpartition(".")[0]
    name, _, version = stem.partition("-")
    told = {"name": name, "version": version}
    for file in ("METADATA", "PKG-INFO"):
        try:
            with (folder / file).open(encoding="utf-8", errors="replace") as lines:
                told.update(_head(lines))
            break
        except OSError:
            continue
    return normalised(told["name"]), told["version"]


def _head(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if not line.strip():
            return
        key, colon, value = line.partition(":")
        if colon and key.lower() in ("name", "version"):
            yield key.lower(), value.strip()
