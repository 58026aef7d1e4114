"""`git+https://host/team/project.git@ref#subdirectory=part`, as pip writes it, read into values."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit


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
        where = f"#subdirectory={self.subdirectory}" if self.subdirectory else ""
        return f"git+{self.url}@{commit}{where}"


def read_git(address: str) -> GitAddress:
    """Read the address of a requirement of kind GIT."""
    bare, _, fragment = address.removeprefix("git+").partition("#")
    parts = urlsplit(bare)
    path, at, ref = parts.path.rpartition("@")
    if not at or "/" not in path:
        path, ref = parts.path, ""
    inner = parse_qs(fragment).get("subdirectory", [""])[0].strip("/")
    return GitAddress(urlunsplit(parts._replace(path=path)), unquote(ref), inner)
