"""PEP 508, URL, git and local requirements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qs, quote, unquote, urlsplit, urlunsplit

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envspec.credentials import has_secret_query, without_credentials
from envspec.names import SDIST, SDIST_ENDINGS, WHEEL
from envspec.spec.errors import BadValue, quoted, refuse_open_secrets
from envspec.spec.pip_lines import NAME, InFolder, corrected, named, option_error
from envspec.structs import replace

_LEADING_OUT: Final = re.compile(r"^/|\\|(?:^|/)(?:\.\.|\.git)(?:/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GitAddress:
    """A folder in a repository.

    url: for git, may have credentials.
    ref: a branch, tag or commit; empty: the default.
    subdirectory: the project's folder in it; empty: the top.
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
        address = f"git+{self.url}@{commit}"
        if self.subdirectory:
            address += f"#subdirectory={quote(self.subdirectory)}"
        return address

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


_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://|\\)|[a-z]+\+|\.{0,2}[/\\]|\.{1,2}(?:\[|$)|~")
#: In characters. Far beyond any real one; Python itself refuses to read numbers of more than 4300 digits.
LONGEST: Final = 2000
_EXAMPLES: Final = 'write requirements as PEP 508 does: `"torch==2.9.*"`, `"transformers[torch]>=4.57,<5"`'
#: The local version of a pin.
_LABEL: Final = re.compile(r"(={2,3}\s*[^\s,;+]+)\+([A-Za-z0-9._-]+)")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_EXTRA_MARKER: Final = re.compile(r"\bextras?\b(?=\s*(?:[=!<>~]|in\b|not\b))|\bin\s+extras\b")


class RequirementKind(Enum):
    """Where a requirement's files come from."""

    NAME = "name"
    WHEEL_URL = "wheel-url"
    SDIST_URL = "sdist-url"
    GIT = "git"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of the spec.

    text: as the spec has it, outer blanks removed; may hold credentials, see `without_credentials`.
    name: normalised (PEP 503).
    specifier: empty for anything but `RequirementKind.NAME`.
    url: of a wheel, an sdist or a git repository, or the path of a local project; without its fragment, None for names.
    sha256: what the spec demands of the file, by `#sha256=`.
    wheel_version: what the file name of a wheel says.
    """

    text: str
    name: str
    kind: RequirementKind
    extras: tuple[str, ...] = ()
    specifier: SpecifierSet = SpecifierSet()  # noqa: RUF009 - packaging's sets are immutable
    marker: Marker | None = None
    url: str | None = None
    sha256: str | None = None
    wheel_version: Version | None = None

    def __str__(self) -> str:
        return without_credentials(self.text)

    def without_credentials(self) -> Requirement:
        """The same requirement as a lock may hold it."""
        url = self.url and without_credentials(self.url)
        return replace(self, text=without_credentials(self.text), url=url)

    def applies_to(self, environment: Mapping[str, str]) -> bool:
        """Whether the marker holds in `environment`, a whole PEP 508 environment (`target.marker_environment`)."""
        return self.marker is None or self.marker.evaluate(dict(environment))


# The model and each check of a spec read the same lines; at most 20,000 of them (`load`).
@lru_cache(maxsize=20_000)
def read_requirement(text: str) -> Requirement:
    """Parse one item of `pip.dependencies`; BadValue if it is none."""
    stripped = text.strip()
    _refuse_other_forms(stripped)
    parsed = _parsed(stripped)
    if _EXTRA_MARKER.search(str(parsed.marker or "")):
        raise BadValue(
            f"{quoted(text)}: a spec has no extras",
            "remove the `extra` marker; list the packages, or write a second spec",
        )
    plain = Requirement(
        text=stripped,
        name=canonicalize_name(parsed.name),
        kind=RequirementKind.NAME,
        extras=tuple(sorted({canonicalize_name(extra) for extra in parsed.extras})),
        specifier=parsed.specifier,
        marker=parsed.marker,
    )
    return plain if parsed.url is None else _from_url(plain, parsed.url)


def without_label(requirement: Requirement) -> tuple[Requirement, str]:
    """`torch==2.9.1` and `cu128` for `torch==2.9.1+cu128`: the label of a pin, empty if it has none."""
    if requirement.url is None and (found := _LABEL.search(requirement.text)):
        return read_requirement(_LABEL.sub(r"\1", requirement.text)), found[2]
    return requirement, ""


def read_constraint(text: str) -> Requirement:
    """Parse one item of `pip.constraints`: a name and versions, perhaps a marker; BadValue for anything else."""
    found = read_requirement(text)
    if found.kind is not RequirementKind.NAME or found.extras:
        raise BadValue(
            f"{quoted(str(found))} is not a constraint",
            f'constraints bound versions (`"{found.name}<2"`); URLs and extras belong in `pip.dependencies`',
        )
    if not found.specifier:
        raise BadValue(f"{quoted(text)} constrains nothing", f'write the versions to allow: `"{found.name}<2"`')
    return found


def read_preference(text: str) -> Requirement:
    """Parse one item of `pip.prefer`: a name and one exact version, perhaps a marker; BadValue for anything else."""
    found = read_constraint(text)
    [*bounds] = found.specifier
    if [each.operator for each in bounds] != ["=="] or bounds[0].version.endswith("*"):
        raise BadValue(
            f"{quoted(text)} is not one version",
            f'write `"{found.name}==1.2.3"`; a range of versions belongs in `pip.constraints`',
        )
    return found


def read_override(text: str) -> Requirement:
    """Parse the requirement of one item of `pip.overrides`: a name, perhaps versions and a marker; BadValue if not."""
    found = read_requirement(text)
    if found.kind is not RequirementKind.NAME or found.extras:
        raise BadValue(
            f"{quoted(str(found))} is not an override",
            f'overrides replace the versions that packages require (`"{found.name}<2"`), and keep the extras',
        )
    return found


def read_name(text: str) -> str:
    """Parse a package's name and normalise it; BadValue if it is none."""
    if not re.fullmatch(NAME, text):
        raise BadValue(
            f"{quoted(text)} is not a package's name", "letters, digits, `-`, `_` and `.` only, without a version"
        )
    return canonicalize_name(text)


def read_sdist_name(text: str) -> str:
    """As `read_name`, or `*` for every name."""
    return text if text == "*" else read_name(text)


def local_address(path: str) -> str:
    """A path as a requirement has it behind the `@`, which a name alone is not."""
    return path if path.startswith((".", "/")) else f"./{path}"


def is_address(text: str) -> bool:
    """Whether a requirement is a URL or a path without a name before it, as pip takes it."""
    return bool(_ADDRESS.match(text)) or (text.endswith(".whl") and "@" not in text)


def _refuse_other_forms(text: str) -> None:
    if not text:
        raise BadValue("an empty requirement", 'remove it, or name a package: `"numpy>=1.26"`')
    if text.startswith("-"):
        raise option_error(text)
    if text.startswith("#"):
        raise BadValue(f"{quoted(text)} is a comment", "remove its quotes: TOML's comments start with #")
    if is_address(text):
        address, _, marker = re.sub(r"\s#.*", "", text).partition(";")
        condition = f" ; {marker.strip()}" if marker else ""
        raise InFolder(
            f"{quoted(text)} has no name",
            f"write {quoted(named(address.strip()) + condition, LONGEST)}",
            lambda folder: f"write {quoted(named(address.strip(), folder) + condition, LONGEST)}",
        )


def _parsed(text: str) -> Pep508:
    shown = quoted(text)
    if len(text) > LONGEST:
        raise BadValue(f"{shown} is {len(text)} characters long", f"a requirement has {LONGEST} at most")
    try:
        return Pep508(text)
    except RecursionError:
        raise BadValue(f"{shown} nests its marker too deeply to read", "make it simpler") from None
    except InvalidRequirement as error:
        # From where packaging's parser could not go on; all of the text where it does not say.
        _, end = getattr(error.__cause__, "span", (0, 0))
        rest = quoted(text[end:].strip())
        # The rest of an address may be that of a password.
        is_shown = rest not in ('""', shown) and not ("://" in text and "@" in rest)
        location = f": it can't be read from {rest} on" if is_shown else ""
        hint = _EXAMPLES
        if meant := corrected(text, is_pep508):
            hint = f"write {meant}"
        raise BadValue(f"{shown} is not a requirement{location}", hint) from None


def is_pep508(text: str) -> bool:
    """Whether a text has the form of a requirement, whatever a spec makes of it."""
    try:
        Pep508(text)
    except (InvalidRequirement, RecursionError):
        return False
    return True


def _from_url(plain: Requirement, address: str) -> Requirement:
    url, _, fragment = address.partition("#")
    scheme = url.partition(":")[0].lower() if "://" in url else ""
    refuse_open_secrets(address)
    if scheme == "git" or scheme.startswith("git+"):
        return _from_git(plain, address)
    if scheme in ("", "file"):
        return replace(plain, kind=RequirementKind.LOCAL, url=address)
    if scheme not in ("http", "https"):
        raise BadValue(
            f"{quoted(address)}: {quoted(scheme)} can't be fetched",
            "use an `https://` address of a wheel or an sdist, or `git+https://`",
        )
    return _from_web(plain, url, fragment)


def _from_git(plain: Requirement, address: str) -> Requirement:
    git = read_git(address)
    scheme, _, rest = git.url.partition("://")
    if scheme.lower() == "ssh" and ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise BadValue(
            f"{quoted(address)} has a password, which SSH does not read from a URL",
            "remove it, and log in with a key; or use `git+https://`",
        )
    if has_secret_query(git.url):
        raise BadValue(
            f"the query of {quoted(address)} has a part that looks like a token", "write it as a login: `${TOKEN}@`"
        )
    if not git.is_inside:
        raise BadValue(
            f"{quoted(git.subdirectory)} is not a folder of the repository",
            "write `#subdirectory=` relative to the repository's top folder, without `..`",
        )
    return replace(plain, kind=RequirementKind.GIT, url=address)


def _from_web(plain: Requirement, url: str, fragment: str) -> Requirement:
    path = _web_path(url)
    if has_secret_query(url):
        raise BadValue(
            f"the query of {quoted(url)} has what looks like a signature or a token, which must not be in a lock",
            "use a permanent address with a login: `https://${TEAM_USER}:${TEAM_PASSWORD}@host/...`",
        )
    filename = unquote(path.rpartition("/")[2])
    sha256 = _sha256(fragment)
    if filename.endswith(".whl"):
        version = _wheel_version(plain.name, filename)
        return replace(plain, kind=RequirementKind.WHEEL_URL, url=url, sha256=sha256, wheel_version=version)
    if filename.endswith(SDIST_ENDINGS):
        if not SDIST.fits(filename):
            raise BadValue(
                f"{quoted(filename)} is not the name of a file that can be locked",
                "letters, digits and `.`, `_`, `-`, `+`, `!`, `~` only: serve the sdist under another name",
            )
        return replace(plain, kind=RequirementKind.SDIST_URL, url=url, sha256=sha256)
    address = without_credentials(url)
    if path.rstrip("/").endswith(".git"):
        raise BadValue(f"{quoted(address)} is a git repository", f'write `"{plain.name} @ git+{address}"`')
    raise BadValue(
        f"{quoted(address)} is neither a wheel nor an sdist",
        "the address must end in a file's name: `.whl`, or `.tar.gz` for an sdist",
    )


def _web_path(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_valid = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadValue(f"{quoted(url)} is not an address", "write it as `https://host/path/file.whl`")
    return parts.path


def _wheel_version(name: str, filename: str) -> Version:
    try:
        if not WHEEL.fits(filename):
            raise InvalidWheelFilename(filename)
        wheel_name, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        hint = "a wheel is `name-version-python-abi-platform.whl`"
        # Between the platform and `.whl`, PEP 825 has the label of a variant.
        if re.match(r"[^-]+-[^-]+(?:-\d[^-]*)?-(?:py|cp|pp)\d[^-]*-[^-]+-[^-]+-[^-]+\.whl$", filename):
            hint = "variants of wheels (PEP 825) are not supported: name another wheel"
        raise BadValue(f"{quoted(filename)} is not the name of a wheel", hint) from None
    if wheel_name != name:
        raise BadValue(
            f"{quoted(filename)} is a wheel of `{wheel_name}`, not of `{name}`", f"write `{wheel_name} @ ...`"
        )
    return version


def _sha256(fragment: str) -> str | None:
    """The hash that a fragment demands; `egg` and `subdirectory` are pip's own and say nothing about bytes."""
    found = None
    for part in filter(None, fragment.split("&")):
        key, _, value = part.partition("=")
        if key == "sha256" and _SHA256.fullmatch(value.lower()):
            found = value.lower()
        elif key not in ("egg", "subdirectory"):
            # What is no hash may be a token: its value is not shown.
            shown = f"#{key}=…" if value else "#…"
            if re.match(r"sha\d|md5|blake", key):
                shown = f"#{part}"
            raise BadValue(f"{quoted(shown)} is not a supported hash", "write `#sha256=` and 64 hexadecimal digits")
    return found
