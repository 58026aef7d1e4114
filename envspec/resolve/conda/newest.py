"""The newest candidate of each chosen package that was not taken, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envspec.model import Refusal
from envspec.resolve.conda.channels import is_in_time
from envspec.resolve.conda.cuda_builds import constrained_name, is_cuda_build
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

    def against(self, candidate: RepoDataRecord) -> Iterator[str]:
        """What excludes a row that was not chosen, the spec's own words first."""
        name = candidate.name.normalized
        asked = [(text, f"the spec asks for {text}") for text in self.request.requirements if name_of(text) == name]
        limits = ((text, limit_words(self.request, text)) for text in self.request.constraints if name_of(text) == name)
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
    request, row = chosen.request, chosen.rows[name]
    cut = request.cut_of(name)
    is_bound = any(constrained_name(text) == name for text in request.constraints)
    # Where a CUDA build was taken, a newer build for the CPU is nothing that could have been taken instead.
    must_be_cuda = is_bound or (request.cuda is not None and is_cuda_build(str(row.build)))
    newer: list[RepoDataRecord] = []
    best: Version = row.version
    for each in _newer(rows, row.version):
        if each.version < best or (must_be_cuda and not is_cuda_build(str(each.build))):
            continue
        if is_in_time(each, cut, undated=request.undated):
            newer = [*newer, each] if newer and each.version == best else [each]
            best = each.version
    if not newer:
        return None
    reasons = sorted((list(chosen.against(each)) for each in newer), key=lambda found: (len(found), found))
    why = reasons[0][0] if reasons[0] else "what it needs in turn does not go with the rest"
    return Refusal(str(best), why)


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
