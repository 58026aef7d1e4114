"""One summary line for several runs of pytest: the counts of each run's own line added up, less the
deselected: what one run leaves out another has.

`python summary.py LOG...` prints it, as pytest does; a log that is not there is left out. Exit 1: the first has none.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

LINE = re.compile(r"^(?:=+ )?(?P<counts>\d+ [a-z]+(?:, \d+ [a-z]+)*) in (?P<seconds>[\d.]+)s\b.*$", re.MULTILINE)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
#: A plural is the same count.
ONE = {"errors": "error", "warnings": "warning"}


def summary(text: str) -> tuple[Counter[str], float] | None:
    """Counts by word, and seconds, of the last summary line; None where there is none."""
    found = list(LINE.finditer(COLOUR.sub("", text)))
    if not found:
        return None
    counts: Counter[str] = Counter()
    for part in found[-1]["counts"].split(", "):
        number, word = part.split()
        counts[ONE.get(word, word)] += int(number)
    return counts, float(found[-1]["seconds"])


def main(names: list[str]) -> int:
    paths = [Path(name) for name in names]
    found = [summary(path.read_text(errors="replace")) for path in paths if path.exists()]
    if not found or found[0] is None:
        sys.stderr.write("pytest printed no summary: no test ran\n")
        return 1
    counts: Counter[str] = Counter()
    for each in found:
        counts += each[0] if each else Counter({"error": 1})
    seconds = sum(each[1] for each in found if each)
    words = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
    plural = {one: many for many, one in ONE.items()}
    line = ", ".join(
        f"{counts[word]} {plural.get(word, word) if counts[word] > 1 else word}" for word in words if counts[word]
    )
    sys.stdout.write(f"{'=' * 10} {line} in {seconds:.2f}s {'=' * 10}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
