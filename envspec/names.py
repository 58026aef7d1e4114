"""Names from outside, and what they may look like before they become a path or reach a lock.

Index pages, channels, locks, URLs and archives are written by others. Each name in them has one form here; whoever
reads one checks it once, at the edge. Whatever fits a form has no separator, no control character and no character that
a shell, a requirements file or a Dockerfile reads in its own way.

Imports next to nothing: commands that only read a lock import this.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

#: The longest file name in bytes, of the 255 that file systems have: a file that is being written has 25 more.
LONGEST: Final = 230

#: What a name may consist of: a subset of what Linux, macOS and Windows allow. Colons, spaces and all that is not ASCII
#: are missing, and so are control characters and lone surrogates.
_PLAIN: Final = r"[A-Za-z0-9._+!~-]"
_START: Final = r"[A-Za-z0-9_]"


class Form(NamedTuple):
    """words: what it is, as messages name it. match: the bound `fullmatch` of its pattern."""

    words: str
    pattern: re.Pattern[str]
    longest: int = LONGEST

    def fits(self, text: str) -> bool:
        """Whether `text` has this form."""
        return len(text) <= self.longest and self.pattern.fullmatch(text) is not None


def _form(words: str, pattern: str, longest: int = LONGEST) -> Form:
    return Form(words, re.compile(pattern), longest)


#: Windows opens a device under these names, whatever follows their first dot.
_DEVICE: Final = r"(?!(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))"
_SDIST_ENDING: Final = r"\.(?:tar\.gz|zip|tgz|tar\.bz2|tar\.xz)"
# name-version(-build)?-python-abi-platform.whl (PyPA, "Binary distribution format").
_WHEEL: Final = (
    r"[A-Za-z0-9][A-Za-z0-9_.]*-[A-Za-z0-9][A-Za-z0-9_.!+]*(?:-[0-9][A-Za-z0-9_.]*)?(?:-[A-Za-z0-9_.]+){3}\.whl"
)
# An sdist that a spec names by URL may be called `main.zip`: no version is required.
_SDIST: Final = rf"{_DEVICE}{_START}{_PLAIN}*{_SDIST_ENDING}"

#: The last component of a path, of any kind.
FILE_NAME: Final = _form("a plain file name", rf"{_DEVICE}{_START}{_PLAIN}*(?<!\.)")
WHEEL: Final = _form("the name of a wheel", _WHEEL)
SDIST: Final = _form("the name of an sdist", _SDIST)
RELEASE_FILE: Final = _form("the name of a wheel or an sdist", rf"{_WHEEL}|{_SDIST}")
CONDA_ARCHIVE: Final = _form(
    "the name of a conda archive", rf"{_DEVICE}{_START}{_PLAIN}*-{_PLAIN}+-{_PLAIN}+\.(?:conda|tar\.bz2)"
)

SHA256: Final = _form("a SHA-256 of 64 lower-case hexadecimal digits", r"[0-9a-f]{64}")
MD5: Final = _form("an MD5 of 32 lower-case hexadecimal digits", r"[0-9a-f]{32}")
DIGEST: Final = _form("a digest such as sha256:...", r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")

#: A package, an extra, an index or an environment.
NAME: Final = _form("a name of letters, digits, `-`, `_` and `.`", rf"{_START}[A-Za-z0-9._-]*")
#: PEP 440's and conda's.
VERSION: Final = _form("a version", r"[A-Za-z0-9_][A-Za-z0-9._+!~-]*")
#: Also conda's build strings.
BUILD: Final = _form("a build string", r"[A-Za-z0-9._+!~-]+")
#: An apt package, with its version or not.
APT: Final = _form("an apt package", r"[a-z0-9][a-z0-9.+-]*(?::[a-z0-9-]+)?(?:=[A-Za-z0-9.+:~-]+)?")

_INNER: Final = r"(?!\.\.?(?:/|$))[^/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
#: A path below a folder; `.` and `..` are no part of it.
INNER_PATH: Final = _form("a path below its folder", rf"{_INNER}(?:/{_INNER})*", 4096)
ABSOLUTE_PATH: Final = _form("an absolute path without `..`", rf"/(?:{_INNER}(?:/{_INNER})*/?)?", 4096)

#: No blank, nothing that ends a line or a quotation, no backslash (which clients take for `/`).
URL: Final = _form("a URL", r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\\\"<>^`{|}\x00-\x20\x7f-\x9f\ud800-\udfff]+", 8192)
#: One line of text: it stands in comments of files that others read line by line.
LINE: Final = _form("one line of text", r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*", 1 << 16)

_HARMFUL: Final = re.compile(r"[/\\:\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def is_harmful(name: str) -> bool:
    """Whether a file name could lead out of its folder, break a line or hide a part of itself.

    One that is not harmful and has no form of a release is merely none: the name of another file.
    """
    return _HARMFUL.search(name) is not None or name in ("", ".", "..") or len(name.encode()) > LONGEST
