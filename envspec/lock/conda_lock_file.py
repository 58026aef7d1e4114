"""conda-lock.yml, version 1 of conda-lock's format, for `conda-lock install`, micromamba and mamba, without envspec.

The format's source: `conda_lock.lockfile.v1.models` of conda-lock 4.0.3. Its models are not imported: that costs more
CPU than the rest of a lock. Tests hold what is written here against them, and try `conda-lock render` on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from envspec.lock.canonical import canonical
from envspec.lock.depends import dependencies
from envspec.lock.explicit import unexpanded
from envspec.models import CondaPackage, Lock, Platform

CONDA_LOCK_NAME: Final = "conda-lock.yml"

# YAML folds some of the line ends that JSON leaves as they are, and knows no escapes in pairs.
_ESCAPED: Final = re.compile("[^\x20-\x7e]")


def conda_lock_text(lock: Lock) -> str | None:
    """The conda half of all platforms; None where there is none, or where the format can't hold it.

    Version 1 demands an MD5 of every package: see `without_md5`. The wheels on top are not in it, for it wants each
    file's URL, which a lock leaves out for the default index.
    """
    lock = canonical(lock)
    rows = sorted(_rows(lock), key=lambda row: (row[1].name, row[0].value))
    if not rows or without_md5(lock):
        return None
    platforms = [resolution.target.platform.value for resolution in lock.resolutions]
    lines = [
        f"# {lock.name}: written by `envspec lock`. Change the spec, not this file. To install it:",
        f"#   conda-lock install --prefix PREFIX {CONDA_LOCK_NAME}",
        f"#   micromamba create --prefix PREFIX --file {CONDA_LOCK_NAME}",
        *_on_top(lock),
        "version: 1",
        "metadata:",
        "  content_hash:",
        *(f"    {_text(platform)}: {_text(lock.input_sha256)}" for platform in platforms),
        "  channels:",
        *(line for channel in lock.channels for line in _channel(channel.url)),
        "  platforms:",
        *(f"  - {_text(platform)}" for platform in platforms),
        "  sources: []",
        "package:",
        *(line for platform, package in rows for line in _package(platform, package)),
    ]
    return "\n".join(lines) + "\n"


def without_md5(lock: Lock) -> str | None:
    """Why there is no conda-lock.yml though there are conda packages; None where there is one."""
    names = sorted({package.name for _, package in _rows(lock) if package.md5 is None})
    if not names:
        return None
    return (
        f"no {CONDA_LOCK_NAME} is written: its format demands an MD5, and the channel gives none for {_some(names)}; "
        "install from conda-PLATFORM.lock, or by envspec"
    )


def _rows(lock: Lock) -> Iterator[tuple[Platform, CondaPackage]]:
    for resolution in lock.resolutions:
        for package in resolution.conda:
            yield resolution.target.platform, package


def _some(names: Sequence[str], most: int = 3) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _on_top(lock: Lock) -> Iterable[str]:
    if not any(resolution.packages for resolution in lock.resolutions):
        return ()
    return (
        "# and on top of it the wheels, with its own Python:",
        "#   python -m pip install --no-deps --require-hashes -r requirements.PLATFORM.txt",
    )


def _channel(url: str) -> Iterable[str]:
    return f"  - url: {_text(unexpanded(url))}", "    used_env_vars: []"


def _package(platform: Platform, package: CondaPackage) -> Iterator[str]:
    needs = dependencies(package.depends)
    yield f"- name: {_text(package.name)}"
    yield f"  version: {_text(package.version)}"
    yield '  manager: "conda"'
    yield f"  platform: {_text(platform.value)}"
    yield "  dependencies:" if needs else "  dependencies: {}"
    for name, version in needs.items():
        yield f"    {_text(name)}: {_text(version)}"
    yield f"  url: {_text(unexpanded(package.url))}"
    yield "  hash:"
    yield f"    md5: {_text(package.md5 or '')}"
    yield f"    sha256: {_text(package.sha256)}"
    yield '  category: "main"'
    yield "  optional: false"


def _text(text: str) -> str:
    """A JSON string that YAML reads as the same text."""
    return _ESCAPED.sub(_escape, json.dumps(text, ensure_ascii=False))


def _escape(found: re.Match[str]) -> str:
    point = ord(found[0])
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"
