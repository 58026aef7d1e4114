"""No lock holds an older release, or a pre-release, because a wheel is missing.

An index is made of random releases, of which some have an sdist alone; another has the same releases, all with wheels.
What the first gives is what the second gives, or a refusal that names exactly the sdists in it; never other versions.
"""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

NAMES = ["app", "base", "core", "data", "extra", "flow"]
VERSIONS = ["0.9", "1.0", "1.1", "2.0", "2.1rc1"]
AS_OF = "2026-06-01T00:00:00Z"
SEEDS = range(12)


def releases(seed: int) -> list[tuple[str, str, list[str], bool]]:
    """Name, version, requirements, and whether it has a wheel."""
    dice = random.Random(seed)
    rows = []
    for number, name in enumerate(NAMES):
        for version in VERSIONS:
            below = [each for each in NAMES[number + 1 :] if dice.random() < 0.4]
            bounds = [f"{each}{dice.choice(['', '>=1.0', '<2.1', '>=1.1,<3', '!=1.1'])}" for each in below]
            rows.append((name, version, bounds, dice.random() < 0.6))
    return rows


def made(row: tuple[str, str, list[str], bool]) -> Artifact:
    name, version, requires, has_wheel = row
    if has_wheel:
        return wheel(name, version, requires=requires)
    return sdist(name, version, requires=requires, on_build='raise SystemExit("nothing may be built here")')


def lock(rows: list[tuple[str, str, list[str], bool]], folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The pins, and the releases of a refusal."""
    folder.mkdir(parents=True)
    with IndexServer([File(made(row), day("2024-01-01")) for row in rows]) as index:
        user = User(folder, index.url)
        user.wants("app", "data>=1.0", as_of=AS_OF)
        ran = user.locks()
        if ran.status == 0:
            return user.pins(), {}
        message = refused(ran, 4)
        found = dict(re.findall(r"^  ([a-z]+) (\S+) \(required by ", message, re.MULTILINE))
        assert found, message
        [line] = re.findall(r"^    allow_sdist = \[(.*)\]$", message, re.MULTILINE)
        assert re.findall(r'"([a-z]+)"', line) == sorted(found)
        return {}, found


def test_a_missing_wheel_changes_no_version(tmp_path: Path) -> None:
    def both(seed: int) -> int:
        rows = releases(seed)
        complete, _ = lock([(*row[:3], True) for row in rows], tmp_path / f"{seed}-complete")
        pins, listed = lock(rows, tmp_path / f"{seed}")
        assert complete, f"seed {seed}: the complete index must have a solution"
        without = {(name, version) for name, version, _, has_wheel in rows if not has_wheel}
        assert listed == {name: version for name, version in complete.items() if (name, version) in without}, seed
        assert pins == ({} if listed else complete), seed
        return len(listed)

    with ThreadPoolExecutor(2) as threads:
        refusals = list(threads.map(both, SEEDS))
    # Both outcomes were met.
    assert 0 in refusals and max(refusals) > 1
