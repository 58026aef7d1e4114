"""Keep docs/measurements/claims.md true: `python -m bench.claims` writes the output of `envspec lock`.

For each spec in docs/measurements/claims/ the page has a marker, `<!-- claim: NAME facts -->` or
`<!-- claim: NAME index -->`, and an `<!-- end -->`; what stands between is written here. `facts` claims are decided
without any network, and `--check` compares those; `index` claims are resolved by the package index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from bench.harness import clean
from envspec.lockfile.document import load
from envspec.lockfile.header import LOCK_FILE

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "measurements" / "claims.md"
SPECS: Final = ROOT / "docs" / "measurements" / "claims"
_CLAIM: Final = re.compile(
    r"(?P<head><!-- claim: (?P<name>\S+) (?P<by>facts|index) -->\n).*?(?P<end><!-- end -->)", re.S
)
_WRAP: Final = textwrap.TextWrapper(110, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
_SHOWN: Final = ("cuda.release", "image.tag")
#: Nothing answers there: what gets an answer all the same did not ask a network.
_NOWHERE: Final = "http://127.0.0.1:9"


class By(Enum):
    """What decides a claim: FACTS in envspec's own data, or what the package INDEX holds."""

    FACTS = "facts"
    INDEX = "index"


def rewritten(page: str, deciders: Sequence[By]) -> str:
    """The page with the claims of these deciders tried again; the others stay as they are."""

    def tried(found: re.Match[str]) -> str:
        by = By(found["by"])
        return f"{found['head']}{_block(found['name'], by)}{found['end']}" if by in deciders else found[0]

    return _CLAIM.sub(tried, page)


def names(page: str) -> list[str]:
    """The claims on the page, in its order."""
    return [found["name"] for found in _CLAIM.finditer(page)]


def _block(name: str, by: By) -> str:
    spec = (SPECS / f"{name}.toml").read_text(encoding="utf-8")
    spec = "".join(line for line in spec.splitlines(keepends=True) if not line.startswith("#"))
    return f"```toml\n{spec}```\n{_told(name, by)}"


def _told(name: str, by: By) -> str:
    """The run as a console shows it, its long lines wrapped, and what was locked."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        shutil.copytree(SPECS, place / "docs" / "measurements" / "claims")
        proxy = _NOWHERE if by is By.FACTS else None
        words = ("envspec", "lock", f"docs/measurements/claims/{name}.toml")
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=place,
            env=clean(os.environ, home=place, proxy=proxy),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=300,
        )
        said = "\n".join(map(_WRAP.fill, done.stdout.splitlines()))
        locked = "" if done.returncode else f"\n{_locked(place / 'locks' / f'claim-{name}')}\n"
    return f"\n```console\n$ {' '.join(words)}\n{said}\n$ echo $?\n{done.returncode}\n```\n{locked}"


def _locked(folder: Path) -> str:
    lock = load((folder / LOCK_FILE).read_text(encoding="utf-8"), folder.name)
    pins = [f"{p.name} {p.version}" for r in lock.resolutions for p in r.packages if p.name.startswith("torch")]
    stated = [f"`{decision.what}` {decision.value}" for decision in lock.decisions if decision.what in _SHOWN]
    return f"Locked: {'; '.join([', '.join(pins), *stated])}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or with `--check` say whether its `facts` claims are what envspec says: 0 if so, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.claims", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare what needs no network, and write nothing")
    options = parser.parse_args(arguments)
    page = PAGE.read_text(encoding="utf-8")
    if options.check:
        is_true = rewritten(page, (By.FACTS,)) == page
        if not is_true:
            sys.stderr.write("docs/measurements/claims.md is not what envspec says: run `python -m bench.claims`\n")
        return 0 if is_true else 1
    PAGE.write_text(rewritten(page, tuple(By)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
