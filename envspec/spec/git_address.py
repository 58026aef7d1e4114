"""`git+https://host/team/project.git@ref#subdirectory=part`, as pip writes it, read into values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

_LEADING_OUT: Final = re.compile(r"^/|\\|(?:^|/)(?:\.\.|\.git)(?:/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GitAddress:
    """A place in a repository. url: what git is told; may hold credentials. ref: a branch, tag or commit; empty for the
    repository's own default. subdirectory: the project's folder in it; empty for the top.
    """

    url: str
    ref: str = ""
    subdirectory: str = ""

    @property
    def filename(self) -> str:
        """The repository's name."""
        return self.url.rstrip("/").rpartition("/")[2]

    def pinned(self, commit: str) -> str:
        """The address of one commit, as pip writes it."""
        where = f"#subdirectory={quote(self.subdirectory)}" if self.subdirectory else ""
        return f"git+{self.url}@{commit}{where}"

    @property
    def is_inside(self) -> bool:
        """Whether the subdirectory, as it is written, is a folder of the repository and none of git's own."""
        return not _LEADING_OUT.search(self.subdirectory) and self.subdirectory.isprintable()


def read_git(address: str) -> GitAddress:
    """Read the address of a requirement of kind GIT. What is no URL is left to git to refuse."""
    bare, _, fragment = address.removeprefix("git+").partition("#")
    inner = parse_qs(fragment).get("subdirectory", [""])[0].rstrip("/")
    try:
        parts = urlsplit(bare)
    except ValueError:
        return GitAddress(bare, "", inner)
    path, at, ref = parts.path.rpartition("@")
    if not at or "/" not in path:
        path, ref = parts.path, ""
    return GitAddress(urlunsplit(parts._replace(path=path)), unquote(ref), inner)
