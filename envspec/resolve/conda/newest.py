"""The newest candidate of each chosen package that was not taken, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from envspec.model import Refusal
from envspec.resolve.conda.channels import is_in_time
from envspec.resolve.conda.cuda_builds import cuda_constraint, is_cuda_build
from envspec.resolve.conda.obstacles import limit_words
from envspec.resolve.conda.question import CondaRequest
from envspec.resolve.conda.rows import name_of

if TYPE_CHECKING:
    from rattler import MatchSpec, PackageRecord, RepoDataRecord, Version


@dataclass(slots=True)
class Chosen:
    """What was chosen for a request, with what the machine has, as it can be asked about candidates.

    rows: by name, virtual packages too.
    """

    request: CondaRequest
    rows: Mapping[str, PackageRecord]
    _specs: dict[str, MatchSpec] = field(default_factory=dict)
    _asking: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, row in sorted(self.rows.items()):
            for text in row.depends:
                self._asking.setdefault(name_of(text), []).append((text, f"{name} {row.version} needs {text}"))
            for text in row.constrains:
                self._asking.setdefault(name_of(text), []).append((text, f"{name} {row.version} allows only {text}"))

    def is_cuda(self, name: str) -> bool:
        """Whether the chosen row is a CUDA build, and meant to be one."""
        return self.request.cuda is not None and is_cuda_build(str(self.rows[name].build))

    def against(self, candidate: RepoDataRecord) -> Iterator[str]:
        """What excludes a row that was not chosen, the spec's own words first."""
        name = candidate.name.normalized
        asked = [(text, f"the spec asks for {text}") for text in self.request.requirements if name_of(text) == name]
        implied = [cuda_constraint(name)] if self.is_cuda(name) else []
        constraints = dict.fromkeys([*self.request.constraints, *implied])
        limits = ((text, limit_words(self.request, text)) for text in constraints if name_of(text) == name)
        bounds = [(text, f"excluded by {words}") for text, words in limits]
        # what the package's own older version says of it would go with that version
        others = [pair for pair in self._asking.get(name, ()) if not pair[1].startswith(f"{name} ")]
        unmet = [(text, words) for text in candidate.depends for words in self._unmet(text)]
        # What the machine or the spec itself excludes goes first: of packages that are pinned to each other, as pytorch
        # and libtorch are, each is held back by the other, which explains neither.
        fixed = [words for text, words in unmet if self._is_fixed(name_of(text))]
        yield from (words for text, words in (*asked, *bounds) if not self._fits(text, candidate))
        yield from fixed
        yield from (words for text, words in others if not self._fits(text, candidate))
        yield from (words for _, words in unmet if words not in fixed)
        for text in candidate.constrains:
            present = self.rows.get(name_of(text))
            if present is not None and not self._fits(text, present):
                yield f"it allows only {text}, and {present.name.normalized} is {present.version}"

    def _is_fixed(self, name: str) -> bool:
        texts = (*self.request.requirements, *self.request.constraints)
        return name.startswith("__") or any(name_of(text) == name for text in texts)

    def _unmet(self, text: str) -> Iterator[str]:
        name = name_of(text)
        present = self.rows.get(name)
        if present is None:
            if name.startswith("__"):
                yield f"it needs {text}, which this environment's machine has not"
        elif not self._fits(text, present):
            is_machine = name.startswith("__")
            yield f"it needs {text}, and {'the machine has' if is_machine else 'here is'} {name} {present.version}"

    def _fits(self, text: str, row: PackageRecord) -> bool:
        from rattler import MatchSpec

        if text not in self._specs:
            self._specs[text] = MatchSpec(text)
        return self._specs[text].matches(row)


def newest_refused(chosen: Chosen, name: str, rows: Iterable[RepoDataRecord]) -> Refusal | None:
    """The newest version of `name` by its moment that is newer than the chosen one, and why it is not in.

    rows: all of the name. None where the chosen version is the newest.
    """
    request, version = chosen.request, chosen.rows[name].version
    later = _newer(rows, version)
    newer: list[RepoDataRecord] = []
    if chosen.is_cuda(name):
        cuda = (row for row in later if "cuda" in row.file_name and is_cuda_build(str(row.build)))
        newer = _newest(cuda, version, request)
    # A newer build for the CPU is told where there is no newer CUDA build to tell of.
    newer = newer or _newest(later, version, request)
    if not newer:
        return None
    reasons = sorted((list(chosen.against(each)) for each in newer), key=lambda found: (len(found), found))
    refused = str(newer[0].version)
    return Refusal(refused, reasons[0][0] if reasons[0] else _unsaid(chosen, name, refused))


def _unsaid(chosen: Chosen, name: str, refused: str) -> str:
    """Why a version was not taken that nothing speaks against: it came later than the lock, which keeps what it has."""
    row = cast("RepoDataRecord", chosen.rows[name])
    kept = next((package for package in chosen.request.locked if package.filename == row.file_name), None)
    if kept is None:
        return "what it needs in turn does not go with the rest"
    if kept.newest is not None and kept.newest.version == refused:
        return kept.newest.why
    return f"the lock keeps {row.version}; `--upgrade-package {name}` moves it"


def _newest(rows: Iterable[RepoDataRecord], version: Version, request: CondaRequest) -> list[RepoDataRecord]:
    """All rows of the newest version by its moment that is not older than `version`."""
    found: list[RepoDataRecord] = []
    best = version
    for row in rows:
        if row.version < best or not is_in_time(row, request.cut_of(row.name.normalized), undated=request.undated):
            continue
        found = [*found, row] if found and row.version == best else [row]
        best = row.version
    return found


def _newer(rows: Iterable[RepoDataRecord], version: Version) -> list[RepoDataRecord]:
    """The rows above a version. A version is compared once, however many builds it has."""
    verdicts: dict[str, bool] = {}
    found: list[RepoDataRecord] = []
    for row in rows:
        # name, version, build: to compare texts is cheaper than to ask the row for its version
        text = row.file_name.rsplit("-", 2)[1]
        if text not in verdicts:
            verdicts[text] = row.version > version
        if verdicts[text]:
            found.append(row)
    return found
