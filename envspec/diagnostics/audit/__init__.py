"""What is wrong with a project's environment today: rules over its sources, the facts, and what an index has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from envspec.diagnostics.audit import cuda, family, gpu, index, python
from envspec.diagnostics.audit.types import Audit, Finding, Need, Rule, Severity, SkippedCheck

_WORST_FIRST: Final = tuple(Severity)


class Check(NamedTuple):
    """A group of rules.

    name: of what it examines.
    find: what is wrong.
    need: what it can't run without, if anything.
    """

    name: str
    find: Callable[[Audit], Iterator[Finding]]
    need: Need | None = None


#: Every rule is reported by one of these; in the order of `examined`.
CHECKS: Final = (
    Check("requirements of the torch family", family.requested),
    Check("versions that do not work together", family.taken, Need.TAKEN),
    Check("GPU code", gpu.gpu_code, Need.GPUS),
    Check("driver", gpu.drivers, Need.DRIVER),
    Check("labels of builds", cuda.labels),
    Check("CUDA of torch", cuda.builds),
    Check("indexes of PyTorch", cuda.indexes),
    Check("CUDA images", cuda.images),
    Check("CUDA of conda", cuda.conda),
    Check("packages of the index", index.projects, Need.PAGES),
    Check("versions of the index", index.releases, Need.PAGES),
    Check("solution", index.unsolvable),
    Check("Python", python.pythons),
    Check("extensions of torch", python.extensions),
    Check("open versions", python.loose),
    Check("lines not understood", python.unread),
)


def _rules() -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for module in (family, gpu, cuda, index, python):
        for each in vars(module).values():
            if isinstance(each, Rule):
                found[each.code] = each
    return dict(sorted(found.items()))


#: All rules, by their codes: the constants of the modules.
RULES: Final = _rules()


def examine(audit: Audit) -> tuple[list[Finding], list[SkippedCheck], list[str]]:
    """All findings; what was not run; and the names of the checks that ran."""
    has = {
        Need.PAGES: audit.pages is not None,
        Need.TAKEN: audit.taken is not None,
        Need.GPUS: bool(audit.gpus),
        Need.DRIVER: audit.driver is not None,
    }
    found: list[Finding] = []
    not_run = list(audit.left_out)
    examined = []
    for check in CHECKS:
        if check.need is not None and not has[check.need]:
            not_run.append(SkippedCheck(check.name, check.need.value))
        else:
            examined.append(check.name)
            found += check.find(audit)
    return found, not_run, examined


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of a report."""

    def rank(each: Finding) -> tuple[object, ...]:
        return _WORST_FIRST.index(each.rule.severity), each.source.file, each.source.line, each.rule.code

    return sorted(findings, key=rank)
