"""matplotlib's SVG, made fit for a page: inline, in the page's colours and letters, the same bytes each time."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours that nothing else has; each becomes a variable of the page's style, which knows light and dark.
INK: Final = "#010203"
QUIET: Final = "#010204"
PASSED: Final = "#010205"
FAILED: Final = "#010206"
PALETTE: Final = tuple(f"#0102{number:02x}" for number in range(0x10, 0x16))
_VARIABLES: Final = {
    INK: "var(--ink)",
    QUIET: "var(--quiet)",
    PASSED: "var(--passed)",
    FAILED: "var(--failed)",
    **{colour: f"var(--part-{number})" for number, colour in enumerate(PALETTE)},
}
_TAG: Final = re.compile(r"<[^>]*>")
# Of the whole page, since the element is in it: matplotlib's lines look the same without.
_STYLE: Final = re.compile(r"\s*<defs>\s*<style[^>]*>[^<]*</style>\s*</defs>")
# Up to 3.10 `font: 8px 'DejaVu Sans', ...`, since then `font-family: 'DejaVu Sans', ...`.
_FONT: Final = re.compile(r"(font: [^;\"]*?px |font-family: )[^;\"]*")
_IDS: Final = re.compile(r'(\bid="|\bxlink:href="#|url\(#)')
_OPENING: Final = (
    r'<svg viewBox="\2" preserveAspectRatio="xMinYMin" style="max-height: \1pt" aria-hidden="true" focusable="false">'
)
_SIZE: Final = re.compile(r'<svg [^>]*?height="([\d.]+)pt"[^>]*?viewBox="([^"]+)"[^>]*>')


def draw(name: str, onto: Callable[[Axes], None], width: float, height: float) -> str:
    """An `<svg>` element of what is drawn onto axes. name: of this plot on its page. width, height: inches.

    It is hidden from those who hear the page: the page says in words what it shows.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        # Letters are the reader's: they can be searched, copied and read aloud, and no font is in the page.
        mpl.rc("svg", fonttype="none", hashsalt="envspec")
        mpl.rc("text", parse_math=False, color=INK)
        mpl.rc("font", size=8.0)
        mpl.rc("axes", edgecolor=QUIET, labelcolor=INK, unicode_minus=False)
        mpl.rc("axes.spines", top=False, right=False)
        mpl.rc("xtick", color=INK)
        mpl.rc("ytick", color=INK)
        # A letter that matplotlib's font lacks is measured as a box, and drawn by the reader's own font.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots()
        onto(axes)
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _for_page(text.getvalue(), f"p{sha256(name.encode()).hexdigest()[:8]}-")


def _for_page(svg: str, prefix: str) -> str:
    svg = svg[svg.index("<svg ") :].strip()
    # In tags alone: names and words of a receipt stay what they are.
    svg = _TAG.sub(lambda tag: _tag(tag[0], prefix), _STYLE.sub("", svg, count=1))
    return _SIZE.sub(_OPENING, svg, count=1)


def _tag(tag: str, prefix: str) -> str:
    tag = _FONT.sub(r"\g<1>var(--letters)", _IDS.sub(rf"\g<1>{prefix}", tag))
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, variable)
    return tag
