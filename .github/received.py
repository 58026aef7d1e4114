"""Checks of what a job without permissions passes on to a job with permissions. The first job runs code from outside,
which may have written all of it. Nothing of it is run here, and no path in it is used unchecked.

received.py names NAME...       print names of specs as a JSON list; fail if one has no spec
received.py locks FOLDER        put proposed specs and locks into the checkout; fail if FOLDER contains anything else
received.py layout FOLDER       print the digest of an OCI layout's only manifest; fail if FOLDER contains anything else
received.py text < TEXT         print Markdown that mentions nobody, closes no issue and has no HTML, links or images

Run it with `python3 -I`: isolated from the working directory and from the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import tomllib

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PLATFORM = r"(?:linux-64|linux-aarch64|osx-arm64|win-64)"
PROPOSED = re.compile(
    rf"specs/(?P<spec>{NAME.pattern})\.toml|locks/(?P<lock>{NAME.pattern})/"
    rf"(?:envspec\.lock|requirements\.{PLATFORM}\.txt|conda-{PLATFORM}\.lock|conda-lock\.yml)"
)
AS_OF = re.compile(rb"(as_of *= *)(\S+)(.*)", re.DOTALL)
NEW_AS_OF = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
#: Locks are text of up to 300 kB each; whole images have up to 10 GB, base included.
FILES, FILE_BYTES, ALL_BYTES, IMAGE_BYTES, DOCUMENT_BYTES = 1000, 16 * 2**20, 64 * 2**20, 32 * 2**30, 4 * 2**20
#: A comment, or a pull request's description, has 65,536 characters at most.
TEXT_CHARACTERS = 65_000

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# GitHub reads these in the text of a page: what HTML encodes and what Markdown escapes is a mention all the same. A
# space of no width breaks each of them, unseen in code too: mentions, issues (`closes #1`), addresses, tags, targets of
# links and images, and their definitions.
ACTIVE = re.compile(
    r"(?<![A-Za-z0-9_])@(?=[A-Za-z0-9])|#(?=\d)|\bGH-(?=\d)|(?<=:)/(?=/)|\bwww(?=\.)|<(?=[A-Za-z/!?])|\](?=[(:\[])",
    re.IGNORECASE,
)


def fail(why: str) -> NoReturn:
    sys.exit(f"::error::rejected the other job's files: {ascii(why)[1:-1]}")


def files(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """(path below `folder` with slashes, path, bytes) of every file.

    Links, devices, files with two names and more than FILES files are errors.
    """
    count, waiting = 0, [folder]
    while waiting:
        for entry in sorted(os.scandir(waiting.pop()), key=lambda each: each.name):
            count += 1
            if count > FILES:
                fail(f"more than {FILES} files")
            known = entry.stat(follow_symlinks=False)
            path = Path(entry.path)
            if stat.S_ISDIR(known.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(known.st_mode) and known.st_nlink == 1:
                yield path.relative_to(folder).as_posix(), path, known.st_size
            else:
                fail(f"{path.relative_to(folder).as_posix()} is not a regular file")


def names(words: list[str]) -> None:
    for name in words:
        if not NAME.fullmatch(name) or not Path("specs", f"{name}.toml").is_file():
            sys.exit(f"::error::no spec is called {name!a}")
    sys.stdout.write(json.dumps(list(dict.fromkeys(words))) + "\n")


def locks(folder: Path) -> None:
    """Replace files of the checkout by the proposed ones: specs with another as_of, and whole folders of locks."""
    contents = dict(proposed(folder))
    matches = [PROPOSED.fullmatch(name) for name in contents]
    specs, locked = ({found[what] for found in matches if found and found[what]} for what in ("spec", "lock"))
    if {name for spec in specs for name in names_of(spec)} != locked or not specs:
        fail(f"the specs {sorted(specs)} do not match the locks {sorted(locked)}")
    for name in sorted(specs):
        check_only_as_of(Path("specs", f"{name}.toml"), contents[f"specs/{name}.toml"])
    for name in sorted(locked):
        lock = Path("locks", name)
        if f"locks/{name}/envspec.lock" not in contents or not (lock / "envspec.lock").is_file():
            fail(f"locks/{name} has no envspec.lock, or had none")
    for name in locked:
        for path in Path("locks", name).iterdir():
            if PROPOSED.fullmatch(path.as_posix()):
                path.unlink()
    for name, content in contents.items():
        # A new file: without the mode, times and links of the received one.
        Path(name).write_bytes(content)


def names_of(spec: str) -> list[str]:
    """The names of the locks of a spec in the repository: its own, and those of its variants."""
    path = Path("specs", f"{spec}.toml")
    variants = tomllib.loads(path.read_text(encoding="utf-8")).get("variants", {}) if path.is_file() else {}
    return [spec, *(f"{spec}-{name}" for name in variants)]


def proposed(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files of a proposal, which must be text."""
    size = 0
    for name, path, file_bytes in list(files(folder)):
        size += file_bytes
        if not PROPOSED.fullmatch(name):
            fail(f"{name} is neither a spec nor a file of a lock")
        if file_bytes > FILE_BYTES or size > ALL_BYTES:
            fail(f"{name} is too large")
        content = path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            fail(f"{name} is not text")
        if CONTROL.search(text.replace("\r\n", "\n")):
            fail(f"{name} has control characters")
        yield name, content


def check_only_as_of(spec: Path, content: bytes) -> None:
    if not spec.is_file() or spec.is_symlink():
        fail(f"{spec} is not in the repository")
    old, new = spec.read_bytes().split(b"\n"), content.split(b"\n")
    if old == new:
        # An age, of which only the lock has the date.
        return
    differing = [pair for pair in zip(old, new, strict=False) if pair[0] != pair[1]]
    moved = [(AS_OF.fullmatch(before), AS_OF.fullmatch(after)) for before, after in differing]
    if len(old) != len(new) or len(moved) != 1:
        fail(f"{spec} differs in more than its as_of")
    [(before, after)] = moved
    is_same = before and after and (before[1], before[3]) == (after[1], after[3])
    if after is None or not is_same or not NEW_AS_OF.fullmatch(after[2]):
        fail(f"{spec} differs in more than its as_of")


def layout(folder: Path) -> None:
    """Check that there is nothing else. The program that pushes checks each blob by its digest."""
    size = 0
    for name, _, file_bytes in files(folder):
        size += file_bytes
        if not re.fullmatch(r"oci-layout|index\.json|manifest\.json|blobs/sha256/[0-9a-f]{64}", name):
            fail(f"{name} is not part of an image")
        if size > IMAGE_BYTES:
            fail("the image is too large")
    try:
        [top] = document(folder / "index.json")["manifests"]
        digest, path = top["digest"], blob(folder, top["digest"])
        manifest = document(path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
            fail(f"the content of {digest} has another digest")
        blobs = [manifest["config"], *manifest["layers"]]
        # The program that pushes would fetch a URL that replaces a blob.
        if any("urls" in each or not blob(folder, each["digest"]).is_file() for each in blobs):
            fail("a blob is not in the layout")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        fail(f"not an image of one platform: {fault}")
    sys.stdout.write(f"{digest}\n")


def blob(folder: Path, digest: str) -> Path:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        fail(f"{digest} is not a digest")
    return folder / "blobs" / "sha256" / digest.partition(":")[2]


def document(path: Path) -> Any:
    if path.stat().st_size > DOCUMENT_BYTES:
        fail(f"{path.name} is too large")
    return json.loads(path.read_bytes())


def text() -> None:
    received = sys.stdin.buffer.read(4 * TEXT_CHARACTERS).decode("utf-8", "ignore")
    seen = CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", received.replace("\r\n", "\n"))
    inactive = ACTIVE.sub(lambda found: f"{found[0]}\u200b", seen)
    sys.stdout.buffer.write(inactive[:TEXT_CHARACTERS].encode())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["names", *words] if words:
            names(words)
        case ["locks", folder]:
            locks(Path(folder))
        case ["layout", folder]:
            layout(Path(folder))
        case ["text"]:
            text()
        case _:
            sys.exit(__doc__)
