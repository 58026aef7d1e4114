"""results.json of a run and what the host knows about it -> Receipt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from envspec.conformance.receipt import document
from envspec.conformance.request import Nodes
from envspec.conformance.results import FORMAT as RESULTS_FORMAT
from envspec.errors import EnvspecError
from envspec.receipts.compare import against
from envspec.receipts.model import Image, LocalPython, LockName, Receipt, Verdict, problems


class BadResults(EnvspecError):
    """Results that this version's suite does not write."""

    code = "internal"


@dataclass(frozen=True, slots=True)
class ReceiptInputs:
    """What the host knows about a run and the suite in the container does not.

    made_at: with a time zone.
    lock: that the stack has to be.
    where: the image, or the Python that ran the suite; `is_locked` is set from the check `lock`.
    ended: why the suite did not run to its end; empty if it did.
    requested: names of the checks to run.
    required: those that must not be `not run`.
    named: those that the user or the spec requests by name.
    as_if: the lock that the stack was compared with.
    toolkit: version of NVIDIA's container toolkit.
    baseline: a recorded receipt to compare with.
    """

    envspec: str
    made_at: datetime
    lock: LockName | None
    where: Image | LocalPython
    requested: tuple[str, ...]
    ended: str = ""
    required: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    as_if: LockName | None = None
    nodes: Nodes = field(default_factory=Nodes)
    world_size: int | None = None
    toolkit: str = ""
    baseline: Receipt | None = None


def receipt(results: Mapping[str, Any], inputs: ReceiptInputs) -> Receipt:
    """The receipt of a run. results: the document that the suite wrote, possibly incomplete.

    The verdict is that of `envspec.conformance.receipt`; it is also `failed` if a number is worse than the baseline's
    by more than its tolerance.

    Raises:
        BadResults: the document has another format, or keys are missing or wrong; the message names them.
    """
    if results.get("format") != RESULTS_FORMAT:
        raise BadResults(f"the results are of format {results.get('format')!r}, this envspec reads {RESULTS_FORMAT}")
    try:
        built = Receipt.model_validate(document(_plain(results), _known(inputs)))
    except KeyError as error:
        raise BadResults(f"the suite's results lack {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        why = "a value has the wrong type"
        if isinstance(error, ValidationError):
            why = "; ".join(problems(error))
        hint = "run the suite of this envspec version"
        raise BadResults(f"the suite's results can't be read: {why}", hint=hint) from error
    if inputs.baseline is None:
        return built
    return _with_baseline(built, inputs.baseline)


def _known(inputs: ReceiptInputs) -> dict[str, Any]:
    place = "image" if isinstance(inputs.where, Image) else "local"
    return {
        "envspec": inputs.envspec,
        "made_at": inputs.made_at,
        "lock": inputs.lock and inputs.lock.model_dump(),
        "as_if": inputs.as_if and inputs.as_if.model_dump(),
        "image": None,
        "local": None,
        place: inputs.where.model_dump(),
        "ended": inputs.ended,
        "requested": inputs.requested,
        "required": inputs.required,
        "named": inputs.named,
        "nodes": asdict(inputs.nodes),
        "world_size": inputs.world_size,
        "toolkit": inputs.toolkit,
    }


def _with_baseline(built: Receipt, recorded: Receipt) -> Receipt:
    baseline = against(built, recorded)
    worse = [row.text for row in baseline.worse_rows()]
    if not worse:
        return built.model_copy(update={"baseline": baseline})
    failed = built.reasons if built.verdict is Verdict.FAILED else ()
    update = {"baseline": baseline, "reasons": (*failed, *worse), "verdict": Verdict.FAILED}
    return built.model_copy(update=update)


def _plain(value: Any) -> Any:
    """The document without lone surrogates (from file names), which can't be encoded."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    return value
