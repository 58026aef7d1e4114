"""Lines of pip's requirements files that no spec can have, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from envspec import documents
from envspec.credentials import without_credentials
from envspec.escaping import blanked
from envspec.facts import load_facts
from envspec.names import normalised
from envspec.origins import PYTORCH, PYTORCH_PAGES
from envspec.spec.errors import BadValue, quoted

_MOST_CHARACTERS: Final = 2000
# Source: pip's documentation, "Requirements File Format" (pip 25.3).
_SHORT: Final = {"r": "requirement", "c": "constraint", "e": "editable", "f": "find-links", "i": "index-url"}
_OPTION: Final = re.compile(r"-(?:-([a-z][a-z0-9-]*)|([a-zA-Z]))[\s=]*(.*)", re.DOTALL)
NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"

_VARIABLES: Final = (
    "python_version|python_full_version|os_name|sys_platform|platform_machine|platform_system|platform_release"
    "|platform_version|platform_python_implementation|implementation_name|implementation_version"
)
#: Common slips, and what each is replaced with.
_SLIPS: Final[tuple[tuple[str, str], ...]] = (
    (r"(?:^|\s)#.*$", ""),
    (r"^\s*(?:python3?\s+-m\s+|uv\s+)?pip3?\s+install\s+(?:--?[\w-]+\s+)*", ""),
    (r"\\\s*$", ""),
    # Per-requirement options: --hash=sha256:..., --config-settings=..., --no-build-isolation
    (r"\s--[a-z][a-z-]*(?:=\S+|\s+(?!-)\S+)?(?=\s|$)", ""),
    (r"""^\s*(["'])(.*)\1\s*,?\s*$""", r"\2"),
    (r",\s*$", ""),
    # A URL ends at a blank.
    (r"(@\s*[^\s;]+);", r"\1 ;"),
    (rf"""\b({_VARIABLES})\s*([<>=!~]=?=?)\s*([^'"\s()<>=!~]+)""", r"\1 \2 '\3'"),
    (rf"^({NAME}(?:\[[^\]]*\])?)\s*=\s*(?=[^=\s])", r"\1=="),
    (rf"^({NAME}(?:\[[^\]]*\])?)\s+v?(?=\d)", r"\1=="),
    # `>= 2 <3`
    (r"((?:[=~!<>]=|[<>])\s*[\w.*+!]+)\s+(?=[=~!<>]=?\s*\d)", r"\1,"),
)


class InFolder(BadValue):
    """A value whose hint needs the files beside the spec. read: makes the hint from the spec's folder."""

    def __init__(self, found: str, hint: str, read: Callable[[Path], str]) -> None:
        super().__init__(found, hint)
        self._read = read

    def hint_in(self, folder: Path | None) -> str:
        return self.hint if folder is None else self._read(folder)


def option_error(text: str) -> BadValue:
    """The error for an option, with the lines of a spec that do the same."""
    found = f"{quoted(text)} is an option of pip, not a requirement"
    name, value = option_of(re.sub(r"\s+#.*", "", text))
    if name in ("requirement", "constraint") and value:
        key = "dependencies" if name == "requirement" else "constraints"
        hint = f"remove it, and copy the lines of {quoted(value)[1:-1]} into `{key}`"
        return BadValue(found, f"{hint}; `envspec init` writes a spec of requirements files")
    if name == "editable" and value:
        return InFolder(found, f"write {_item(named(value))}", lambda folder: f"write {_item(named(value, folder))}")
    if name == "group" and value:
        file, colon, group = value.rpartition(":")
        lines = _item(f"{file}{colon}group:{group}")
        return BadValue(found, f"remove it, and add `dependencies_from = [{lines}]` at the top")
    if name in ("index-url", "extra-index-url", "find-links") and value:
        return BadValue(found, _index(name, quoted(without_credentials(value), _MOST_CHARACTERS)[1:-1]))
    return BadValue(found, _OTHERS.get(name, "remove it: a spec has no options of pip"))


def option_of(text: str) -> tuple[str, str]:
    """The long name of an option of pip, without its dashes, and its value; both empty if it is none."""
    match = _OPTION.fullmatch(text)
    if match is None:
        return "", ""
    return match[1] or _SHORT.get(match[2], match[2]), match[3].strip().strip("\"'")


def name_in(text: str) -> str:
    """The normalised name that a requirement begins with; empty if it begins with none."""
    found = re.match(rf"\s*({NAME})", text)
    return normalised(found[1]) if found else ""


#: What replaces other options.
_OTHERS: Final = {
    "pre": 'remove it, and name the pre-release: "torch>=2.10.0rc1"',
    "no-binary": "remove it: a wheel is built only if a release has none (`[pip.build] packages`)",
    "require-hashes": "remove it: the lock has the hash of every file",
    "hash": "remove it: the lock has the hash of every file",
    "trusted-host": "remove it: certificates are those of this machine (SSL_CERT_FILE)",
}


def _index(option: str, url: str) -> str:
    """What replaces the option for an index or a page of links."""
    if pytorch := PYTORCH_PAGES.match(url):
        return f"remove it: {_pytorch(pytorch[1])}"
    if "://" not in url:
        return f'remove it, and name each wheel by its path: "NAME @ {url.rstrip("/")}/NAME-1.0-py3-none-any.whl"'
    row = next((row for row in load_facts().links if url.startswith(row.url)), None)
    others = []
    if option == "find-links":
        others.append('format = "links"')
    if row:
        lines = index_lines(url, row.packages, others)
    else:
        lines = index_lines(url, ["NAME"], others)
        lines[-1] += "  # the names that come from there"
    default = ""
    if option == "index-url":
        default = f"set ENVSPEC_DEFAULT_INDEX={url} if it replaces the default index, else "
    return _pasted(f"remove it; {default}add to the end of the spec", lines)


def index_lines(url: str, names: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """The table of an index in a spec. names: of its packages. others: lines with other keys."""
    packages = ", ".join(f'"{name}"' for name in names)
    head = ["[[pip.index]]", f'name = "{index_name(url)}"', f"url = {quoted(url, _MOST_CHARACTERS)}"]
    return [*head, *others, f"packages = [{packages}]"]


def _pytorch(path: str) -> str:
    cuda = re.match(r"cu(\d+)(\d)\b", path)
    if cuda:
        return _pasted("torch's CUDA is set by", ["[cuda]", f'version = "{cuda[1]}.{cuda[2]}"'])
    if path.startswith("cpu"):
        return "without [cuda], torch is its build for the CPU"
    if re.match(r"rocm|xpu|nightly|test", path):
        return "only released builds for CUDA and the CPU are supported"
    return "PyTorch's index is used if `[cuda] version` needs it"


def index_name(url: str) -> str:
    """A name for an index: `pyg` of https://data.pyg.org."""
    host = (urlsplit(url).hostname or "index").split(".")
    name = re.sub(r"[^a-z0-9]+", "-", host[-2:][0]).strip("-")
    if name in ("", "default", "url") or name.startswith(PYTORCH):
        return "links"
    return name


def named(address: str, folder: Path | None = None) -> str:
    """The requirement for what pip takes by its address alone. folder: of the spec, to read the project's name."""
    return without_credentials(with_name(address, folder))


def with_name(address: str, folder: Path | None = None) -> str:
    """As `named`, with the credentials of the address."""
    bare, _, fragment = address.partition("#")
    if "://" not in bare:
        path, extras = re.fullmatch(r"(.*?)(\[[^\]]*\])?", bare, re.DOTALL).groups()  # type: ignore[union-attr]
        name = _name_in(path)
        if folder and (folder / path).is_dir():
            name = project_name(folder / path) or name
        return f"{name}{extras or ''} @ {path}"
    egg = re.match(rf"{NAME}(?:\[[^\]]*\])?", parse_qs(fragment).get("egg", [""])[0])
    name = egg[0] if egg else _name_in(bare)
    kept = [part for part in fragment.split("&") if part and not part.startswith("egg=")]
    if kept:
        bare += f"#{'&'.join(kept)}"
    return f"{name} @ {bare}"


def project_name(folder: Path) -> str | None:
    """The name of a project, by its pyproject.toml, setup.cfg or setup.py, else the folder's; None if that can't name
    one.
    """
    for read in (
        _pyproject_name,
        lambda folder: setup_cfg(folder, "metadata", "name"),
        _setup_py_name,
        lambda folder: folder.resolve().name,
    ):
        name = read(folder)
        if isinstance(name, str) and re.fullmatch(NAME, name):
            return name
    return None


def _pyproject_name(folder: Path) -> object:
    try:
        document = documents.read_toml(folder / "pyproject.toml")
    except (OSError, ValueError):
        return None
    for keys in (("project",), ("tool", "poetry")):
        table = documents.table_of(document, *keys)
        if "name" in table:
            return table["name"]
    return None


def setup_cfg(folder: Path, section: str, key: str) -> str | None:
    """A value of the setup.cfg of a folder; None if it has none."""
    import configparser

    parser = configparser.RawConfigParser()
    try:
        parser.read_string(documents.spec_bytes(folder / "setup.cfg").decode("utf-8"))
    except (OSError, ValueError, configparser.Error):
        return None
    return parser.get(section, key, fallback=None)


def _setup_py_name(folder: Path) -> object:
    # Only a project without a name elsewhere needs the parser.
    from envspec.spec.setup_py import read_setup_py

    found = read_setup_py(folder)
    return found.name if found else None


def _name_in(address: str) -> str:
    last = unquote(re.split(r"[?#]", address, maxsplit=1)[0].rstrip("/\\")).replace("\\", "/").rpartition("/")[2]
    stem = re.sub(r"@.*|\.git$|\.whl$|\.zip$|\.tar\.\w+$|-\d.*", "", re.sub(r"@.*", "", last))
    return stem if re.fullmatch(NAME, stem) else "name"


def corrected(text: str, is_readable: Callable[[str], bool]) -> str | None:
    """The list item that a line with common slips was meant to be; None if it is not readable without them either."""
    meant = without_slips(text, is_readable)
    if meant is None:
        return None
    comment = re.search(r"(?:^|\s)(#.*)$", text)
    if comment is None:
        return _item(meant)
    return f"{_item(meant)},  {without_credentials(blanked(comment[1]))}"


def without_slips(text: str, is_readable: Callable[[str], bool]) -> str | None:
    """The requirement that a line with common slips was meant to be; None as in `corrected`."""
    if len(text) > _MOST_CHARACTERS:
        return None
    meant = text
    for pattern, instead in _SLIPS:
        meant = re.sub(pattern, instead, meant).strip()
    if not meant or meant == text or not is_readable(meant):
        return None
    return meant


def _item(text: str) -> str:
    return quoted(text, _MOST_CHARACTERS)


def _pasted(what: str, lines: list[str]) -> str:
    return "\n    ".join([f"{what}:", *lines])
