"""Files that several packages of a lock have with different content: whose are installed.

Decided once, when the lock is made: `envspec install`, images, Dockerfiles and `envspec verify` only read the lock.
"""

from __future__ import annotations

import io
import re
import token
import tokenize
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from envspec.models import CONFLICT, FILE_OWNER, INCIDENTAL, NAMESPACE, ONLY_CODE, SharedFiles
from envspec.names import INNER_PATH
from envspec.verifier.owned import Overlap
from envspec.verifier.record import DATA

#: A longer `__init__.py` is not read: it counts as code.
MAX_INIT_BYTES: Final = 64 * 1024
#: SHA-256 of nothing, as RECORD has it.
_EMPTY: Final = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
#: More are not read: a lock with so many has other conflicts.
_MOST_READ: Final = 100

#: Files that no program reads: of the project that was built, packed by mistake, or for people.
_INCIDENTAL: Final = re.compile(
    r"(?:build_backend|conftest|hatch_build|noxfile|setup|versioneer)\.py"
    r"|(?:setup\.cfg|tox\.ini|pyproject\.toml|manifest\.in)"
    r"|(?:tests?|docs?|examples|benchmarks|licen[cs]es)/.+"
    r"|(?:[^/]*third[-_ ]?party|(?:readme|licen[cs]e|copying|notice|authors|contributing|changelog|changes))[^/]*"
    r"(?<!\.py)(?<!\.so)(?<!\.pyd)"
    r"|(?:.+/)?py\.typed",
    re.IGNORECASE,
)
#: Statements of an `__init__.py` that extends a namespace's path, their tokens without blanks between them.
_EXTENDING: Final = re.compile(
    r"__path__=(?:pkgutil\.|__import__\(['\"]pkgutil['\"]\)\.)?extend_path\(__path__,__name__\)"
    r"|(?:pkg_resources\.|__import__\(['\"]pkg_resources['\"]\)\.)?declare_namespace\(__name__\)"
)
#: Statements without an effect beside it.
_WITHOUT_EFFECT: Final = re.compile(
    r"import(?:pkgutil|pkg_resources)|frompkgutilimportextend_path|frompkg_resourcesimportdeclare_namespace"
    r"|from__future__import[\w,()]+|try:|except(?:ImportError|ModuleNotFoundError|Exception)?:|pass"
    r"|del(?:pkgutil|pkg_resources|extend_path|declare_namespace)"
)
_LAYOUT: Final = (token.INDENT, token.DEDENT, token.NL, token.COMMENT, token.ENCODING)

#: Reads a small file of a package's wheel, by its path in an Overlap; None if it is larger than MAX_INIT_BYTES or can't
#: be read.
ReadSmall = Callable[[str, str], Awaitable["bytes | None"]]


class InitKind(Enum):
    """What an `__init__.py` does. EXTENDS: it makes its package a namespace, and nothing else."""

    NOTHING = "nothing"
    EXTENDS = "extends"
    CODE = "code"


def is_incidental(path: str) -> bool:
    """Whether no program needs the file at a path of an Overlap, by its name alone."""
    return _INCIDENTAL.fullmatch(path.removeprefix(DATA)) is not None


def init_kind(content: bytes) -> InitKind:
    """What the code of an `__init__.py` does, without running or compiling it; CODE if in doubt."""
    kind = InitKind.NOTHING
    try:
        for statement in _statements(content):
            if _EXTENDING.fullmatch(statement):
                kind = InitKind.EXTENDS
            elif not _WITHOUT_EFFECT.fullmatch(statement):
                return InitKind.CODE
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return InitKind.CODE
    return kind


def _statements(content: bytes) -> Iterator[str]:
    """The statements, each its tokens without blanks; no docstrings."""
    words: list[str] = []
    is_text = True
    for each in tokenize.tokenize(io.BytesIO(content).readline):
        is_end = each.type in (token.NEWLINE, token.ENDMARKER) or (each.type == token.OP and each.string == ";")
        if is_end or (each.type == token.OP and each.string == ":" and words):
            if words and not is_text:
                yield "".join((*words, "" if is_end else ":"))
            words, is_text = [], True
        elif each.type not in _LAYOUT:
            words.append(each.string)
            is_text &= each.type == token.STRING


async def shared_files(found: Iterable[Overlap], read: ReadSmall) -> tuple[SharedFiles, ...]:
    """Whose the files are that packages have with different content, as far as names and content decide it."""
    # `lock --check` needs `decide` alone.
    from asyncio import gather

    usable: list[Overlap] = []
    inits: dict[str, Overlap] = {}
    for each in found:
        if not INNER_PATH.fits(each.path):
            # No wheel with such a path can be installed.
            continue
        usable.append(each)
        if _is_init(each.path) and not is_incidental(each.path) and len(inits) < _MOST_READ:
            inits[each.path] = each
    owners = await gather(*(_owner_by_content(each, read) for each in inits.values()))
    by_content = dict(zip(inits, owners, strict=True))
    rows = []
    for each in usable:
        owner, why = by_content.get(each.path, ("", CONFLICT))
        if is_incidental(each.path):
            owner, why = min(each.contents), INCIDENTAL
        rows.append((each.path, tuple(each.contents), owner, why))
    return _grouped(rows)


def _is_init(path: str) -> bool:
    return path.rpartition("/")[2] == "__init__.py"


async def _owner_by_content(found: Overlap, read: ReadSmall) -> tuple[str, str]:
    """The owner of an `__init__.py`, and why. Of those that only extend the path the longest wins, then the first by
    name: it has the most for readers, and does the same.
    """
    of_kind: dict[InitKind, list[str]] = defaultdict(list)
    sizes: dict[str, int] = {}
    for name, digest in found.contents.items():
        content = b"" if _EMPTY.startswith(digest) else await read(name, found.path)
        if content is None:
            return "", CONFLICT
        of_kind[init_kind(content)].append(name)
        sizes[name] = len(content)
    code, extending = of_kind[InitKind.CODE], of_kind[InitKind.EXTENDS]
    if not code:
        return min(extending or sizes, key=lambda name: (-sizes[name], name)), NAMESPACE
    if extending or len({found.contents[name] for name in code}) > 1:
        return "", CONFLICT
    return min(code), ONLY_CODE


def decide(shared: Iterable[SharedFiles], owners: Mapping[str, str], locked: Iterable[str]) -> tuple[SharedFiles, ...]:
    """The same files with the owners that a spec names.

    What follows from names is decided again; what follows from content stays as it is, where content can decide it.

    owners: `[pip] file_owner`.
    locked: the names of the packages from which all of this is.
    """
    known, rows = frozenset(locked), []
    for each in shared:
        packages = tuple(name for name in each.packages if name in known)
        if len(packages) < 2:
            continue
        for path in each.paths:
            key = best_key(path, packages, owners)
            if key is not None:
                rows.append((path, packages, owners[key], FILE_OWNER))
            elif is_incidental(path):
                rows.append((path, packages, packages[0], INCIDENTAL))
            elif each.why in (NAMESPACE, ONLY_CODE) and each.owner in packages and _is_init(path):
                rows.append((path, packages, each.owner, each.why))
            else:
                rows.append((path, packages, "", CONFLICT))
    return _grouped(rows)


def best_key(path: str, packages: Iterable[str], owners: Mapping[str, str]) -> str | None:
    """The key of `file_owner` that decides a file: the path itself, else the longest pattern, else the last one."""
    fitting: list[str] = []
    for key, owner in owners.items():
        if owner in packages and is_named(path, packages, key):
            fitting.append(key)
    return max(fitting, key=lambda key: (key == path.removeprefix(DATA), len(key), key), default=None)


def is_named(path: str, packages: Iterable[str], key: str) -> bool:
    """Whether a key of `file_owner` names a file: by its path, a folder above it, or a package that has it; in all of
    them `*` stands for any text.
    """
    inner = path.removeprefix(DATA)
    return any(fnmatchcase(text, key) for text in (inner, *packages)) or fnmatchcase(inner, f"{key.rstrip('/')}/*")


def _grouped(rows: Iterable[tuple[str, tuple[str, ...], str, str]]) -> tuple[SharedFiles, ...]:
    paths: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for path, packages, owner, why in rows:
        others = tuple(sorted(name for name in packages if name != owner))
        paths.setdefault((owner, others, why), []).append(path)
    groups: list[SharedFiles] = []
    for (owner, others, why), of_group in paths.items():
        groups.append(SharedFiles(others, why, tuple(sorted(of_group)), owner))
    return tuple(sorted(groups))
