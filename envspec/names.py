"""Names from outside, and what they may look like before they become a path or reach a lock.

Index pages, channels, locks, URLs and archives are written by others. Each name in them has one form here; whoever
reads one checks it once, at the edge. Whatever fits a form has no separator, no control character and no character that
a shell, a requirements file or a Dockerfile reads in its own way.

Imports next to nothing: commands that only read a lock import this.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import Final

#: In which torch's builds look for the GPU architectures to compile for.
ARCHITECTURES: Final = "TORCH_CUDA_ARCH_LIST"
#: Options and keys of a spec under their former names -> what to write today.
RENAMED: Final = {
    "--accept-loss": "`--allow-incomplete`",
    "--as-if": "`--compare-with`",
    "--no-pyc": "`--no-compile-bytecode`",
    "--unconfined": "`--no-sandbox`",
    "dependencies-from": "`dependencies_from`",
    "pip.allow_sdist": "`packages` in [pip.build]",
    "pip.sdists": '`pure = false` ("none") or `packages = ["*"]` ("any") in [pip.build]',
    "pip.unconfined_builds": "`sandbox = false` in [pip.build]",
}
#: The longest file name in bytes, of the 255 that file systems have: a file that is being written has 25 more.
LONGEST: Final = 230

#: What a name may consist of: a subset of what Linux, macOS and Windows allow. Colons, spaces and all that is not ASCII
#: are missing, and so are control characters and lone surrogates.
_PLAIN: Final = r"[A-Za-z0-9._+!~-]"
_START: Final = r"[A-Za-z0-9_]"


class Form:
    """What a text may look like. words: what it is, as messages name it. pattern: what matches all of it.

    longest: in characters; where a pattern takes ASCII alone, in bytes.
    """

    __slots__ = ("_match", "longest", "pattern", "words")

    def __init__(self, words: str, pattern: str, longest: int = LONGEST) -> None:
        self.words = words
        self.pattern = pattern
        self.longest = longest
        self._match: Callable[[str], object] | None = None

    def fits(self, text: str) -> bool:
        """Whether `text` has this form."""
        if self._match is None:
            # Not when the module is imported: few commands need more than three forms.
            self._match = re.compile(self.pattern).fullmatch
        return len(text) <= self.longest and self._match(text) is not None


#: Windows opens a device under these names, whatever follows their first dot.
_DEVICE: Final = r"(?!(?i:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$))"
#: Of sdists that a spec names by URL; an index's are `.tar.gz` and `.zip`.
SDIST_ENDINGS: Final = (".tar.gz", ".tgz", ".zip", ".tar.bz2", ".tar.xz")
_SDIST_ENDING: Final = f"(?:{'|'.join(map(re.escape, SDIST_ENDINGS))})"
# name-version(-build)?-python-abi-platform.whl (PyPA, "Binary distribution format").
_WHEEL: Final = (
    r"[A-Za-z0-9][A-Za-z0-9_.]*-[A-Za-z0-9][A-Za-z0-9_.!+]*(?:-[0-9][A-Za-z0-9_.]*)?(?:-[A-Za-z0-9_.]+){3}\.whl"
)
# An sdist that a spec names by URL may be called `main.zip`: no version is required.
_SDIST: Final = rf"{_DEVICE}{_START}{_PLAIN}*{_SDIST_ENDING}"

#: The last component of a path, of any kind.
FILE_NAME: Final = Form("a plain file name", rf"{_DEVICE}{_START}{_PLAIN}*(?<!\.)")
WHEEL: Final = Form("the name of a wheel", _WHEEL)
SDIST: Final = Form("the name of an sdist", _SDIST)
RELEASE_FILE: Final = Form("the name of a wheel or an sdist", rf"{_WHEEL}|{_SDIST}")
CONDA_ARCHIVE: Final = Form(
    "the name of a conda archive", rf"{_DEVICE}{_START}{_PLAIN}*(?:-[A-Za-z0-9._+!~]+){{2}}\.(?:conda|tar\.bz2)"
)

SHA256: Final = Form("a SHA-256 of 64 lower-case hexadecimal digits", r"[0-9a-f]{64}")
MD5: Final = Form("an MD5 of 32 lower-case hexadecimal digits", r"[0-9a-f]{32}")
#: Of git, with SHA-1 or SHA-256.
COMMIT: Final = Form("a commit", r"[0-9a-f]{40}|[0-9a-f]{64}")
DIGEST: Final = Form("a digest such as sha256:...", r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")

#: What the name of a mark in a layer begins with.
WHITEOUT: Final = ".wh."
_SEPARATORS: Final = frozenset("/\\:")
#: Folders of any Linux system: they keep their owner and mode, and what is put into them has its own.
SYSTEM_FOLDERS: Final = frozenset(
    {"", "boot", "dev", "etc", "home", "media", "mnt", "opt", "opt/env", "proc", "root", "run", "srv", "sys", "tmp"}
    | {"usr", "usr/local", "usr/local/src", "usr/src", "var", "var/lib", "var/local", "var/opt", "var/tmp"}
)
#: Those that hold programs and state of the system, or of envspec's images: nobody else's folder is in them.
_SYSTEM_TREES: Final = (
    *("boot", "dev", "etc", "proc", "run", "sys", "opt/env", "opt/envspec", "var/lib/envspec"),
    *(
        f"usr/{each}"
        for each in ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "games")
    ),
    *(f"usr/local/{each}" for each in ("bin", "sbin", "lib", "libexec", "share", "include", "etc", "man", "cuda")),
    *(f"var/{each}" for each in ("backups", "cache", "log", "mail", "spool", "lib/apt", "lib/dpkg")),
)
#: A package, an extra, an index or an environment.
NAME: Final = Form("a name of letters, digits, `-`, `_` and `.`", rf"{_START}[A-Za-z0-9._-]*")
#: In a spec's routes.
NAME_PATTERN: Final = Form("a name, or a pattern with `*`", r"[A-Za-z0-9_*][A-Za-z0-9._*-]*")
#: PEP 440's and conda's.
VERSION: Final = Form("a version", r"[A-Za-z0-9_][A-Za-z0-9._+!~]*")
#: Of conda.
BUILD: Final = Form("a build string", r"[A-Za-z0-9._+!~]+")
#: An apt package, with its version or not.
APT: Final = Form("an apt package", r"[a-z0-9][a-z0-9.+-]*(?::[a-z0-9-]+)?(?:=[A-Za-z0-9.+:~-]+)?")

_INNER: Final = r"(?!\.\.?(?:/|$))[^/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]+"
#: A path below a folder; `.` and `..` are no part of it.
INNER_PATH: Final = Form("a path below its folder", rf"{_INNER}(?:/{_INNER})*", 4096)
#: A folder or a file of an image.
IMAGE_PATH: Final = Form("an absolute path", rf"(?:/{_INNER})+", 4096)

#: Without blanks, quotation marks, angle brackets, braces, `\` (which clients take for `/`), `^`, `|` and controls. The
#: characters that may stand are listed, ASCII first: that matches twice as fast as listing the others.
URL: Final = Form(
    "a URL",
    r"[A-Za-z][A-Za-z0-9+.-]*:[!#-;=?-\[\]_a-z~\u00a1-\u1fff\u2070-\u2fff\u3001-\ud7ff\uf900-\U0010ffff]+",
    8192,
)
#: One line of text: it stands in comments of files that others read line by line.
LINE: Final = Form("one line of text", r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*", 1 << 16)


def is_of_the_system(path: str) -> bool:
    """Whether a folder of an image, absolute or relative to its root, is the system's own or in one of its trees."""
    inner = posixpath.normpath(f"/{path.lstrip('/')}").lstrip("/")
    return inner in SYSTEM_FOLDERS or any(inner == each or inner.startswith(f"{each}/") for each in _SYSTEM_TREES)


def normalised(name: str) -> str:
    """A package's name, or a pattern of names, in the form of PEP 503; conda's names fit it too."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_whiteout(path: str) -> bool:
    """Whether a path has a part that hides files of lower layers, where an image has it (OCI's `layer.md`)."""
    return path.startswith(WHITEOUT) or f"/{WHITEOUT}" in path


def is_harmful(name: str) -> bool:
    """Whether a file name could lead out of its folder, break a line or hide a part of itself.

    One that is not harmful and has no form of a release is merely none: the name of another file.
    """
    # Not printable are control characters, lone surrogates and what turns the direction of text.
    return (
        not name.isprintable()
        or not _SEPARATORS.isdisjoint(name)
        or name in ("", ".", "..")
        or len(name.encode()) > LONGEST
    )
