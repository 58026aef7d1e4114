"""No lock holds an older release, or a pre-release, because a wheel is missing.

An index is made of random releases, of which some have an sdist alone. Some of these state other requirements than
their wheels have, some need a compiler. Another index has the same releases, all with wheels. What the first gives is
what the second gives, or a refusal that names exactly the sdists in it that need a compiler, whose line then gives what
the second gives; never other versions.
"""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.builders.environments import RUNNING
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.machines.confinement import confined
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

NAMES = ["app", "base", "core", "data", "extra", "flow"]
VERSIONS = ["0.9", "1.0", "1.1", "2.0", "2.1rc1"]
AS_OF = "2026-06-01T00:00:00Z"
SEEDS = range(6)


KINDS, WEIGHTS = ["wheel", "sdist", "untrue", "compiled"], [4, 2, 3, 3]
Row = tuple[str, str, list[str], str]
CORRECTED = """
from pathlib import Path
info = Path("PKG-INFO")
lines = [line for line in info.read_text().splitlines() if not line.startswith("Requires-Dist: ")]
info.write_text("\\n".join([lines[0], *(f"Requires-Dist: {each}" for each in REQUIRES), *lines[1:]]) + "\\n")
"""
ON_BUILD = {"sdist": "", "compiled": 'import subprocess\nsubprocess.run(["cc"], check=True)'}


def releases(seed: int) -> list[Row]:
    """Name, version, requirements, and what it is."""
    dice = random.Random(seed)
    rows = []
    for number, name in enumerate(NAMES):
        for version in VERSIONS:
            below = [each for each in NAMES[number + 1 :] if dice.random() < 0.4]
            bounds = [f"{each}{dice.choice(['', '>=1.0', '<2.1', '>=1.1,<3', '!=1.1'])}" for each in below]
            rows.append((name, version, bounds, dice.choices(KINDS, WEIGHTS)[0]))
    return rows


def made(row: Row) -> Artifact:
    name, version, requires, kind = row
    if kind == "wheel":
        return wheel(name, version, requires=requires)
    if kind == "untrue":
        # What was installed where the sdist was made, or nothing.
        stated = [f"{name}==0.9" for name in NAMES[-2:] if name != row[0] and version != "1.1"]
        return sdist(name, version, requires=stated, on_build=f"REQUIRES = {requires}\n{CORRECTED}")
    return sdist(name, version, requires=requires, on_build=ON_BUILD[kind])


def lock(rows: list[Row], folder: Path, *allowed: str) -> tuple[dict[str, str], dict[str, str]]:
    """The pins, and the releases of a refusal. allowed: what may be compiled."""
    folder.mkdir(parents=True)
    with IndexServer([File(made(row), day("2024-01-01")) for row in rows]) as index:
        user = User(folder, index.url)
        user.wants("app", "data>=1.0", as_of=AS_OF, python=RUNNING, pip=f"build.packages = {list(allowed)}\n")
        ran = user.locks()
        if ran.status == 0:
            return user.pins(), {}
        message = refused(ran, 4)
        found = dict(re.findall(r"^  ([a-z]+) (\S+) \(required by ", message, re.MULTILINE))
        assert found, message
        [line] = re.findall(r"^    packages = \[(.*)\]$", message, re.MULTILINE)
        assert re.findall(r'"([a-z]+)"', line) == sorted(found)
        return {}, found


@confined
def test_a_missing_wheel_changes_no_version(tmp_path: Path) -> None:
    def both(seed: int) -> int:
        rows = releases(seed)
        complete, _ = lock([(*row[:3], "wheel") for row in rows], tmp_path / f"{seed}-complete")
        pins, listed = lock(rows, tmp_path / f"{seed}")
        assert complete, f"seed {seed}: the complete index must have a solution"
        compiled = {(name, version) for name, version, _, kind in rows if kind == "compiled"}
        assert listed == {name: version for name, version in complete.items() if (name, version) in compiled}, seed
        if listed:
            pins, _ = lock(rows, tmp_path / f"{seed}-allowed", *listed)
        assert pins == complete, seed
        return len(listed)

    with ThreadPoolExecutor(2) as threads:
        refusals = list(threads.map(both, SEEDS))
    # Both outcomes were met.
    assert 0 in refusals and max(refusals) > 1
