"""Command lines that had nothing to do: `envspec lock SPEC` and `--check` of a lock that was up to date.

People, editors and scripts lock and check far more often than a spec changes. A run after which a lock is up to date
stores a digest of everything that this follows from. The next run of the same words compares it before it imports
anything else, which takes a few milliseconds; after any change it runs in full.
"""

from __future__ import annotations

import os
import stat
import sys

from envspec.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final

#: Part of every key of cached locks: changes whenever the same inputs would make another lock.
MADE: Final = "21"

#: Variables that name the folders of the cache and of the settings, besides envspec's own.
_FOLDERS: Final = ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
#: Any value: a shell completes a command line.
_COMPLETE: Final = "_ENVSPEC_COMPLETE"
_LOCK_FILE: Final = "envspec.lock"
_RECORD: Final = "up-to-date-"
#: As `envspec.verifier.regular.MAX_BYTES`.
_MOST_BYTES: Final = 64 << 20
_FACTS: Final = os.path.join(os.path.dirname(__file__), "..", "..", "data")


def is_plain(words: Sequence[str]) -> bool:
    """Whether a command line is `lock SPEC`, with `--check` and `--output DIR` or not: all others run in full."""
    rest = [word for word in words[1:] if word != "--check"]
    if "--output" in rest:
        at = rest.index("--output")
        del rest[at : at + 2]
    return list(words[:1]) == ["lock"] and len(rest) == 1 and not rest[0].startswith("-")


def known_message(words: Sequence[str]) -> str | None:
    """What a run of these words prints on stderr, if there is nothing to do; None if it has to run in full."""
    if not is_plain(words) or sys.platform == "win32" or _COMPLETE in os.environ:
        return None
    try:
        cache = cache_folder()
        if cache is None or not _is_private(cache):
            return None
        recorded, message, *paths = os.fsdecode(_read(record_path(cache, words))).split("\0")
        if recorded != state(words, paths, message):
            return None
        for path in paths:
            if os.path.basename(path) == _LOCK_FILE and _has_leftovers(os.path.dirname(path)):
                return None
    except (OSError, ValueError):
        return None
    return message


def state(words: Sequence[str], paths: Sequence[str], message: str) -> str:
    """A digest of everything from which it follows that there is nothing to do.

    paths: of the files, relative ones from the current directory on.
    Raises:
        OSError: one of them can't be read.
    """
    from _blake2 import blake2b

    texts = [VERSION, MADE, sys.version, os.getcwd(), message, *words]
    texts += [f"{name}={os.environ[name]}" for name in sorted(os.environ) if _counts(name)]
    texts += sorted(_facts())
    texts += sorted(_stores())
    digest = blake2b(digest_size=32)
    for text in texts:
        digest.update(os.fsencode(text) + b"\0")
    for path in (_config_file(), *paths):
        try:
            content = _read(path)
        except FileNotFoundError:
            digest.update(b"none\0")
        else:
            digest.update(b"%d %s\0%d\0" % (len(path), os.fsencode(path), len(content)))
            digest.update(content)
    return digest.hexdigest()


def cache_folder() -> str | None:
    """The folder of the cache, unless the configuration file names another; None if it is not known here."""
    named = os.environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return os.path.join(os.getcwd(), named)
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        return None
    folder = f"{home}/Library/Caches" if sys.platform == "darwin" else f"{home}/.cache"
    return f"{os.environ.get('XDG_CACHE_HOME') or folder}/envspec"


def _config_file() -> str:
    """As `envspec.settings.config_path`."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        home = os.environ.get("HOME") or os.path.expanduser("~")
        folder = f"{home}/.config"
    return f"{folder}/envspec/config.toml"


def record_path(cache: str, words: Sequence[str]) -> str:
    """Of what a run of these words in this folder has stored."""
    from _blake2 import blake2b

    key = blake2b(os.fsencode("\0".join((os.getcwd(), *words))), digest_size=16)
    # Removed with what else is known of locks and resolutions.
    return f"{cache}/index/{_RECORD}{key.hexdigest()}"


def _counts(name: str) -> bool:
    return name.startswith("ENVSPEC_") or name in _FOLDERS


def _facts() -> Iterator[str]:
    """Every file of facts, and when it was written: the time of a change can't be set, unlike that of the content."""
    with os.scandir(_FACTS) as entries:
        for entry in entries:
            if entry.name.endswith(".toml"):
                found = entry.stat()
                yield f"{entry.name} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _stores() -> list[str]:
    """The folders that know which locks were made here; one of another layout knows of none."""
    cache = cache_folder()
    if cache is None or not os.path.isdir(f"{cache}/index"):
        return []
    return [name for name in os.listdir(f"{cache}/index") if not name.startswith(_RECORD)]


def _read(path: str) -> bytes:
    """As `envspec.verifier.regular.read_regular`, which imports more."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise OSError(f"{path} is not a regular file, or too large")
        return file.read()


def _is_private(cache: str) -> bool:
    """Whether nobody else can have written to the cache: no links, and owners and modes that need no second look.

    `envspec.io.cache` allows more, repairs, and reports what is wrong.
    """
    user = os.geteuid()
    found = os.lstat(cache)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return False
    folder, parent = cache, os.path.dirname(cache)
    while parent != folder:
        found = os.lstat(parent)
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, user) or others_write:
            return False
        folder, parent = parent, os.path.dirname(parent)
    return True


def _has_leftovers(directory: str) -> bool:
    """Whether a killed run left something of this lock, which a run in full removes (`lockfile.folder.tidy`)."""
    real = os.path.realpath(directory)
    parent, name = os.path.split(real)
    names = os.listdir(parent) + os.listdir(real)
    return any(each.startswith(f".{name}.envspec-new-") for each in names)
