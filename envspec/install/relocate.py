"""An environment that was built in one folder and is used in another: its texts and links name the second."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from envspec.effects.files import replace
from envspec.errors import EnvspecError

# The folder's name between slashes, however a shell or a script quotes what stands around it or in it.
_PARTIAL: Final = re.compile(rb"/\.([^/\n\0]{1,400}?)\.envspec-partial")
_MARK: Final = b".envspec-partial"


class NotMovable(EnvspecError):
    """A file has the place where it was built inside, in a form that can't be changed."""


def relocate(site: Path) -> tuple[Path, ...]:
    """Make scripts, links and pyvenv.cfg in `site` name the environment's own folder; the files that changed.

    The rows of RECORD that hold a changed file's hash and size are corrected. Files are replaced, never written to:
    they may be hard links into a cache.

    Raises:
        NotMovable: a program that is no text names the site.
    """
    changed = tuple(path for path in _candidates(site) if _rewrite(path, site))
    for folder in site_packages(site):
        for record in sorted(folder.glob("*.dist-info/RECORD")):
            _correct(record, folder, frozenset(map(os.path.normpath, changed)))
    return changed


def site_packages(site: Path) -> tuple[Path, ...]:
    """The folders that wheels are installed into."""
    return tuple(sorted(path for path in site.glob("lib/python3.*/site-packages") if path.is_dir()))


def _candidates(site: Path) -> Iterator[Path]:
    if (site / "pyvenv.cfg").is_file():
        yield site / "pyvenv.cfg"
    if (site / "bin").is_dir():
        yield from sorted((site / "bin").iterdir())


def _rewrite(path: Path, site: Path) -> bool:
    if path.is_symlink():
        target = path.readlink()
        if target.is_absolute() and target.is_relative_to(site):
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))
        return False
    if not path.is_file():
        return False
    data = path.read_bytes()
    if _MARK not in data:
        return False
    if b"\0" in data:
        raise NotMovable(
            f"bin/{path.name} has the folder where it was built inside, and is no text",
            hint="report this: the package's name and version matter",
        )
    replace(path, _PARTIAL.sub(rb"/\1", data))
    return True


def _correct(record: Path, folder: Path, changed: frozenset[str]) -> None:
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    wrong = [row for row in rows if row and os.path.normpath(folder / row[0]) in changed]
    if not wrong:
        return
    for row in wrong:
        data = (folder / row[0]).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        row[1:] = [f"sha256={digest}", str(len(data))]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    replace(record, text.getvalue().encode())
