"""The requirements of a draft as a spec has them: replaced by overrides as uv reads these, and without doubles."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from envspec.importers.conda_specs import python_marker, with_markers
from envspec.importers.pip import bracketed
from envspec.models import Platform, marker_values
from envspec.names import normalised
from envspec.spec.pip_lines import NAME
from envspec.spec.requirements import Requirement, RequirementKind, read_override


class Overrides:
    """The overrides of a project, as uv and PDM read them: those of a name replace all requirements on it, those of the
    project too. Where none of them applies, nothing is required.

    rows: requirement and reason. python: a series or an exact version.
    """

    def __init__(self, rows: Sequence[tuple[str, str]], platforms: Sequence[Platform], python: str) -> None:
        exact = python if python.count(".") > 1 else f"{python}.0"
        self._environments = {each: marker_values(each, exact) for each in platforms}
        self._rows: dict[str, list[tuple[Requirement, str]]] = {}
        for text, reason in dict.fromkeys(rows):
            override = read_override(text)
            self._rows.setdefault(override.name, []).append((override, reason))

    def tables(self, required: Collection[str]) -> Iterator[dict[str, str | bool]]:
        """The rows of `[pip] overrides`. required: names that the spec itself requires, which it can't remove."""
        for name, rows in self._rows.items():
            applied = self._applied(name)
            for override, reason in rows:
                if override in applied:
                    yield {"requirement": override.text, "reason": reason}
            if name in required:
                continue
            without = list(self._environments)
            for override in applied:
                without = [each for each in without if not override.applies_to(self._environments[each])]
            if without:
                marker = python_marker(tuple(each.value for each in without))
                yield {
                    "requirement": f"{name} ; {marker}" if applied else name,
                    "remove": True,
                    "reason": rows[0][1],
                }

    def removed(self) -> frozenset[str]:
        """The names that are required on no platform."""
        return frozenset(name for name in self._rows if not self._applied(name))

    def replaced(self, line: Requirement) -> list[str] | None:
        """What replaces a requirement of the project; None: it stays, as those that name an address do."""
        if line.name not in self._rows:
            return None
        applied = self._applied(line.name)
        if applied and line.kind is not RequirementKind.NAME:
            return None
        found = []
        for override in applied:
            text = f"{line.name}{bracketed(line.extras)}{override.specifier}"
            found.append(with_markers(text, str(line.marker or ""), str(override.marker or "")))
        return found

    def _applied(self, name: str) -> list[Requirement]:
        """The overrides of a name that apply to a platform."""
        overrides = [override for override, _ in self._rows[name]]
        return [each for each in overrides if any(map(each.applies_to, self._environments.values()))]


def is_implied(line: Requirement, others: Iterable[Requirement]) -> bool:
    """Whether one of the other requirements on the same package demands all that a requirement does."""
    for other in others:
        if (other.name, other.kind, other.url) != (line.name, line.kind, line.url):
            continue
        if other.marker not in (None, line.marker):
            continue
        if {*other.extras} >= {*line.extras} and {*other.specifier} >= {*line.specifier}:
            return True
    return False


def with_name_of_wheel(text: str, requested: str, found: str) -> str:
    """The text of a spec, with another name for a project that it requires by an address."""

    def rename(line: re.Match[str]) -> str:
        return found if normalised(line[0]) == normalised(requested) else line[0]

    return re.sub(rf"(?<=[\"']){NAME}(?=(?:\[[^\]]*\])? @ )", rename, text)


def with_extras(line: Requirement, without: Sequence[str]) -> str:
    """The text of a requirement without some of its extras."""
    kept = [extra for extra in line.extras if extra not in without]
    return re.sub(r"\[[^\]]*\]", bracketed(kept), line.text, count=1)
