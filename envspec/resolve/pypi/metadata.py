"""Requirements in METADATA, and which of them apply to a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from copy import copy
from functools import lru_cache, partial
from typing import Final

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.names import normalised

#: In characters; the longest on the default index have some hundred.
_LONGEST: Final = 8192
_FIELD: Final = re.compile(
    # Continuations are bounded, since `re` takes 100 bytes of memory for each.
    r"^(Requires-Dist|Provides-Extra|Requires-Python|Dynamic):[ \t]*(.+(?:\r?\n[ \t]+.+){0,99})",
    re.MULTILINE | re.IGNORECASE,
)


_OR: Final = re.compile(r"\bor\b")
_EXTRA: Final = re.compile(r"""\bextra\s*==\s*["']([^"']+)["']""")


def metadata_file(name: str, version: str, fields: Iterable[tuple[str, str]] = ()) -> bytes:
    """METADATA of these fields. fields: names and values."""
    head = [("Metadata-Version", "2.1"), ("Name", name), ("Version", version)]
    return "".join(f"{field}: {value}\n" for field, value in (*head, *fields)).encode()


#: The field of METADATA whose requirements another wheel of the same sdist may not have.
DYNAMIC: Final = ("Dynamic", "Requires-Dist")


def is_dynamic(metadata: bytes) -> bool:
    """Whether requirements, extras or Pythons are said to be `Dynamic`."""
    dynamic = map(str.lower, _values(metadata, "dynamic"))
    return not {"requires-dist", "provides-extra", "requires-python"}.isdisjoint(dynamic)


def declared(metadata: bytes) -> tuple[str, ...]:
    """The values of Requires-Dist, in the file's order (core metadata 2.4)."""
    return _values(metadata, "requires-dist")


def extras_of(metadata: bytes) -> tuple[str, ...]:
    return _values(metadata, "provides-extra")


def offered_extras(metadata: bytes) -> frozenset[str]:
    """The extras that a requirement may name, normalised: old wheels have them in the markers alone."""
    extras = list(extras_of(metadata))
    for text in declared(metadata):
        extras += _EXTRA.findall(text.partition(";")[2])
    return frozenset(map(normalised, extras))


def missing_extras(requirement: Requirement, offered: Set[str]) -> list[str]:
    """The extras of a requirement that are not among those that a package offers (`offered_extras`), sorted."""
    return sorted(set(map(normalised, requirement.extras)) - offered)


#: Normalised name -> the versions in place of those that packages require; None: nothing in place of them.
Overrides = Mapping[str, SpecifierSet | None]


def override(text: str, overrides: Overrides) -> str | None:
    """A requirement with other versions, its extras and marker the same; None if it is removed."""
    requirement = parsed(text) if overrides else None
    if requirement is None or (name := normalised(requirement.name)) not in overrides:
        return text
    requirement, versions = copy(requirement), overrides[name]
    if versions is None:
        return None
    requirement.specifier, requirement.url = versions, None
    return str(requirement)


def with_overrides(metadata: bytes, overrides: Overrides) -> bytes:
    """METADATA with the requirements that the overrides leave."""
    if not overrides:
        return metadata
    return _rewrite(metadata, lambda text: override(text, overrides))


def without_requirements(metadata: bytes, keeps: Callable[[str], bool]) -> bytes:
    """METADATA with those of its requirements that `keeps` is true of."""
    return _rewrite(metadata, lambda text: text if keeps(text) else None)


#: `>=3.` and `>=1.9.*`, which tools before PEP 440 was enforced (setuptools 66) read as `>=3` and `>=1.9`.
_LOOSE: Final = re.compile(r"([<>]=?\s*\d+(?:\.\d+)*)\.\*?(?=\s*[,);]|\s*$)")


def valid(metadata: bytes) -> bytes:
    """METADATA with requirements that PEP 508 can read, for those that old build tools wrote in another way."""

    def replaced(text: str) -> str:
        meant = _LOOSE.sub(r"\1", text)
        if meant != text and parsed(text) is None and parsed(meant) is not None:
            return meant
        return text

    # Cheaper than parsing: this reads the metadata of every candidate.
    if not any(map(_LOOSE.search, declared(metadata))):
        return metadata
    return _rewrite(metadata, replaced)


#: A bound that excludes every Python, which nobody else writes.
NO_PYTHON: Final = "<0.dev0"


def evaluated(metadata: bytes, environment: Mapping[str, str]) -> bytes:
    """METADATA that means in every environment what the given one means in this.

    Requirements that do not apply are left out; of the markers of others, only their extras are left. Extras that are
    in the markers alone get their field, without which pip ignores them.
    """
    undeclared = offered_extras(metadata) - set(map(normalised, extras_of(metadata)))
    metadata = _rewrite(metadata, partial(evaluated_requirement, environment=environment))
    metadata = _rewrite(metadata, partial(evaluated_python, environment=environment), "requires-python")
    return with_fields(metadata, [f"Provides-Extra: {extra}" for extra in sorted(undeclared)])


def evaluated_python(specifier: str, environment: Mapping[str, str]) -> str:
    """Empty if a Requires-Python allows the environment's Python, else the same, with a bound that excludes all."""
    if allows(specifier, environment["python_full_version"]):
        return ""
    return f"{specifier},{NO_PYTHON}"


def evaluated_requirement(text: str, environment: Mapping[str, str]) -> str | None:
    """A requirement with only the extras of its marker; None if it does not apply in an environment."""
    requirement = parsed(text) if ";" in text else None
    if requirement is None or requirement.marker is None:
        return text
    marker = str(requirement.marker)
    extras = re.findall(r'"([^"]+)"', marker) if "extra" in marker else []
    is_general = _applies(requirement, environment, frozenset({""}))
    # Extras are evaluated one at a time.
    others: list[str] = []
    for extra in dict.fromkeys(extras):
        if _applies(requirement, environment, frozenset({extra})) != is_general:
            others.append(extra)
    if not is_general and not others:
        return None
    requirement = copy(requirement)
    requirement.marker = None
    if not others:
        return str(requirement)
    if is_general:
        conditions = " and ".join(f'extra != "{extra}"' for extra in others)
    else:
        conditions = " or ".join(f'extra == "{extra}"' for extra in others)
    return f"{requirement} ; {conditions}"


def _rewrite(metadata: bytes, new_of: Callable[[str], str | None], field_name: str = "requires-dist") -> bytes:
    """METADATA with other values of a field. new_of: what replaces one; None or empty if it is removed."""

    def replaced(field: re.Match[str]) -> str:
        if field[1].lower() != field_name:
            return field[0]
        text = " ".join(field[2].split())
        new = new_of(text)
        if new == text:
            return field[0]
        return f"{field[1]}: {new}" if new else ""

    head, end, body = re.split(r"(\r?\n\r?\n|\Z)", metadata.decode("utf-8", "replace"), maxsplit=1)
    # An empty line would end the fields.
    head = "\n".join(filter(None, _FIELD.sub(replaced, head).split("\n")))
    return f"{head}{end}{body}".encode()


def with_fields(metadata: bytes, lines: Sequence[str]) -> bytes:
    """METADATA with more lines in its head."""
    if not lines:
        return metadata
    first, newline, rest = metadata.partition(b"\n")
    return b"\n".join([first, *map(str.encode, lines)]) + newline + rest


def with_version(metadata: bytes, version: str) -> bytes:
    """METADATA that states another version."""
    head, end, body = re.split(rb"(\r?\n\r?\n|\Z)", metadata, maxsplit=1)
    return re.sub(rb"(?im)^(Version:[ \t]*).*$", rb"\g<1>" + version.encode(), head, count=1) + end + body


def requirements_in(metadata: bytes) -> tuple[frozenset[str], frozenset[str], str | None]:
    """What a resolver reads of METADATA."""
    needs = frozenset(map(str, filter(None, map(parsed, declared(metadata)))))
    return needs, frozenset(extras_of(metadata)), requires_python(metadata)


def requires_python(metadata: bytes) -> str | None:
    return next(iter(_values(metadata, "requires-python")), None)


def _values(metadata: bytes, field: str) -> tuple[str, ...]:
    return tuple(" ".join(value.split()) for name, value in _fields(metadata) if name.lower() == field)


@lru_cache(maxsize=1024)
def _fields(metadata: bytes) -> tuple[tuple[str, str], ...]:
    # Several questions for each target, and mostly the same wheels for all.
    head = re.split(r"\r?\n\r?\n", metadata.decode("utf-8", "replace"), maxsplit=1)[0]
    return tuple(_FIELD.findall(head))


def is_of_extra(text: str) -> bool:
    """Whether a requirement belongs to extras only, by its marker."""
    requirement = parsed(text)
    return requirement is not None and requirement.marker is not None and "extra" in str(requirement.marker)


def applicable(
    requirements: tuple[str, ...], environment: Mapping[str, str], extras: frozenset[str]
) -> Iterator[Requirement]:
    """The requirements that apply to the target with these extras; what PEP 508 cannot read is skipped."""
    for text in requirements:
        # Most lines of most packages belong to extras that nothing requires: not worth parsing.
        if not extras and "extra ==" in text and not _OR.search(text):
            continue
        requirement = parsed(text)
        if requirement is not None and _applies(requirement, environment, extras):
            yield requirement


def parsed(text: str) -> Requirement | None:
    """A requirement of PEP 508; None if it is none, or longer or nested deeper than any real one."""
    return _parsed(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        return None


def _applies(requirement: Requirement, environment: Mapping[str, str], extras: frozenset[str]) -> bool:
    if requirement.marker is None:
        return True
    try:
        return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in (extras or {""}))
    except (UndefinedComparison, UndefinedEnvironmentName):
        # The second: of a lock file's variables, `extras` and `dependency_groups`, which packages have no use for.
        return False


def allows(specifier: str, version: str) -> bool:
    """Whether a specifier includes a version, pre-releases too; one that PEP 440 cannot read includes all."""
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def without_marker(requirement: Requirement) -> str:
    """`jinja2>=3.1`, `uvicorn[standard]<1`."""
    text = requirement.name
    if requirement.extras:
        text += f"[{','.join(sorted(requirement.extras))}]"
    text += str(requirement.specifier)
    if requirement.url:
        text += f" @ {requirement.url}"
    return text
