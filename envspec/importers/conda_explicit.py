"""Explicit lists of URLs of conda packages."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from envspec.credentials import channels_without_credentials
from envspec.importers.conda_specs import (
    NOT_ON_LINUX,
    WINDOWS,
    add_pinned,
    add_platform,
    archive_parts,
    check_count,
    is_only_of_windows,
    use_channel,
)
from envspec.importers.types import DraftRequirement, Import, Outcome, Source, Unreadable
from envspec.names import normalised


def read_explicit(path: Path, imported: Import) -> None:
    """A list of URLs under `@EXPLICIT`, as `conda list --explicit` and conda-lock write it.

    Raises:
        Unreadable: it is not text, or has no `@EXPLICIT`.
    """
    file, lines = imported.shown(path), imported.read(path).splitlines()
    if "@EXPLICIT" not in map(str.strip, lines):
        raise Unreadable(f"{file} is not an explicit list of conda packages: it has no @EXPLICIT")
    check_count(file, len(lines))
    of_windows = re.compile(rf"#\s*platform:\s*{WINDOWS}\s*")
    is_moved = WINDOWS not in imported.platforms and any(map(of_windows.fullmatch, lines))
    for number, line in enumerate(lines, 1):
        source, text = Source(file, number), line.strip()
        if is_moved and of_windows.fullmatch(text):
            imported.add(source, text, Outcome.TRANSLATED, "for Linux; `--platform win-64` keeps it for Windows")
        elif found := re.fullmatch(r"#\s*platform:\s*(\S+)", text):
            add_platform(imported, source, found[1])
        elif found := re.fullmatch(r"#\s*pip\s+(\S+)\s*@\s*(\S+?)(?:#\S*)?", text):
            _explicit_wheel(imported, source, text, normalised(found[1]), found[2])
        elif text and text != "@EXPLICIT" and not text.startswith("#"):
            _explicit(imported, source, text, is_moved=is_moved)


def _explicit_wheel(imported: Import, source: Source, text: str, name: str, url: str) -> None:
    if name not in imported.draft.versions:
        imported.draft.dependencies.append(DraftRequirement(name, source))
    filename = filename_of(url)
    try:
        parse = parse_wheel_filename if filename.endswith(".whl") else parse_sdist_filename
        version = str(parse(filename)[1])
    except (InvalidWheelFilename, InvalidSdistFilename):
        imported.add(source, text, Outcome.TRANSLATED, f"`{name}`: its version is not in the URL")
        return
    imported.draft.versions.setdefault(name, version)
    imported.add(source, text, Outcome.TRANSLATED, f"`{name}`, preferred version {version}")


def filename_of(url: str) -> str:
    """The file that a URL is of; URLs of broken files too, which `urlsplit` refuses."""
    return unquote(re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2])


def _explicit(imported: Import, source: Source, text: str, *, is_moved: bool) -> None:
    url = text.partition("#")[0].strip()
    channel = url.rpartition("/")[0].rpartition("/")[0]
    parts = archive_parts(filename_of(url))
    if parts is None or not channel:
        imported.add(source, text, Outcome.NOT_UNDERSTOOD, "not the URL of a conda archive")
        return
    name, version, build = parts
    if is_moved and is_only_of_windows(name):
        imported.add(source, channels_without_credentials(text), Outcome.TRANSLATED, NOT_ON_LINUX)
        return
    use_channel(imported, channels_without_credentials(channel))
    if name != "python" and name not in imported.draft.conda_versions:
        imported.draft.conda.append((name, ""))
    reason = add_pinned(imported, name, version, build, source, is_moved=is_moved)
    required = "[env] python" if name == "python" else f"`{name}`"
    imported.add(source, channels_without_credentials(text), Outcome.TRANSLATED, f"{required}, {reason}")
