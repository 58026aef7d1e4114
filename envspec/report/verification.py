"""An image compared with its lock, as text and JSON."""

from __future__ import annotations

from typing import Final

from envspec.escaping import cut
from envspec.image.verification import ImageFinding, ImageVerification
from envspec.report.format import Row, block, document, first_rows, listing, row, short_hashes, text, wrapped

#: Parts of an image, in the order of the text.
_FIELDS: Final = ("package", "base", "layer", "file", "config", "label")
_MOST_ROWS: Final = 30
_LONGEST: Final = 200


def as_text(result: ImageVerification, width: int) -> str:
    """The differences, those of packages first, and what was compared."""
    head = f"{result.image} {_verdict(result)} {result.lock} on {result.platform}: {result.id}"
    found = sorted(result.findings, key=lambda each: _FIELDS.index(each.drift.field))
    # Their layers and files differ too.
    packages = {each.package for each in found if each.drift.field == "package"}
    found = [each for each in found if each.drift.field == "package" or each.package not in packages]
    table = listing("", map(_row, found))
    notes = [f"compared: {', '.join(result.compared)}"]
    reasons: dict[str, list[str]] = {}
    for what, why in result.not_compared.items():
        reasons.setdefault(why, []).append(what)
    notes += [f"not compared: {', '.join(whats)} ({why})" for why, whats in reasons.items()]
    if result.is_same and "layers" not in result.compared:
        notes.append("labels and config can be forged: --deep fetches what is missing and compares everything")
    lines = [line for note in notes for line in wrapped(note, width)]
    return "\n".join((text([head], [first_rows(table, _MOST_ROWS, "--format json shows all")], width), block(lines)))


def _verdict(result: ImageVerification) -> str:
    if not result.is_same:
        return "is not the image of"
    if "layers" not in result.compared:
        return "has the labels of the image of"
    return "is, as far as compared, the image of" if result.not_compared else "is the image of"


def _row(found: ImageFinding) -> Row:
    return row(found.package or found.drift.field, short_hashes(cut(found.text, _LONGEST)))


def as_json(result: ImageVerification) -> str:
    findings = []
    for each in result.findings:
        drift = each.drift
        parts = {"package": each.package, "path": each.path, "expected": each.expected, "found": each.found}
        findings.append({"field": drift.field, "code": drift.value, **parts, "text": each.text})
    return document(
        {
            "image": result.image,
            "id": result.id,
            "lock": result.lock,
            "platform": result.platform,
            "same": result.is_same,
            "compared": result.compared,
            "not_compared": [{"what": what, "why": why} for what, why in result.not_compared.items()],
            "findings": findings,
        }
    )
