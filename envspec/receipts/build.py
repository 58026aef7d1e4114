"""results.json of a run and what the host knows about it -> Receipt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from envspec.conformance.receipt import ReceiptInputs, document
from envspec.conformance.results import FORMAT as RESULTS_FORMAT
from envspec.errors import EnvspecError
from envspec.receipts.compare import against
from envspec.receipts.model import Receipt, Verdict, problems


class BadResults(EnvspecError, code="internal"):
    """Results that this version's suite does not write."""


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
        built = Receipt.model_validate(document(_plain(results), inputs))
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
