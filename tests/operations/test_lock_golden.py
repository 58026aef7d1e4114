"""Each case under golden/lock_* is a spec, its indexes and channels, and the outcome of locking it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.resolve import RESOLVERS
from tests.support.golden import read_case
from tests.support.golden_locks import decisions, play, refusal

GOLDEN = Path(__file__).parent / "golden"
OUTCOMES = {
    "lock_refusals": refusal,
    "lock_decisions": decisions,
    "lock_conda_refusals": refusal,
    "lock_conda_decisions": decisions,
}
CASES = [f"{group}/{path.stem}" for group in OUTCOMES for path in sorted(GOLDEN.glob(f"{group}/*.txtar"))]


@pytest.mark.parametrize("case", CASES)
def test_case(tmp_path: Path, case: str) -> None:
    given = read_case(GOLDEN / f"{case}.txtar")
    given.check(OUTCOMES[case.partition("/")[0]](given, tmp_path))


def test_uv_explains_a_conflict(tmp_path: Path) -> None:
    """The one assertion of uv's wording; the cases have the names that it contains."""
    _, ran, _ = play(read_case(GOLDEN / "lock_refusals" / "conflict-below.txtar"), tmp_path)
    assert "all versions of other depend on shared>=2 and all versions of one depend on shared<2" in ran.error
    assert "you require one and other" in ran.error


#: Resolved by all resolvers: what each has its own ways with.
BY_ALL = [
    "lock_decisions/backtracks-far",
    "lock_decisions/extension-by-its-label",
    "lock_decisions/extension-newer-for-another-torch",
    "lock_decisions/extras",
    "lock_decisions/glibc-bounds-wheels",
    "lock_decisions/overrides",
    "lock_decisions/private-index",
    "lock_decisions/requires-python-older-patch",
    "lock_decisions/sdist-that-is-pure",
    "lock_decisions/torchaudio-held-by-its-torch",
    "lock_decisions/wheel-by-url",
    "lock_decisions/yanked-and-pinned",
    "lock_decisions/sdist-cannot-be-read",
    "lock_decisions/sdist-whose-wheel-requires-more",
    "lock_decisions/sdist-states-another-python",
    "lock_refusals/conflict-below",
    "lock_refusals/only-an-sdist-below",
    "lock_refusals/sdist-needed-by-a-build",
    "lock_refusals/sdist-that-does-not-build",
    "lock_refusals/sdists-all-at-once",
]


def by_all(case: str, root: Path) -> list[str]:
    """What each resolver makes of a case; of a refusal, the exit code."""
    given = read_case(GOLDEN / f"{case}.txtar")
    result_of = []
    for engine in RESOLVERS:
        folder = root / engine
        folder.mkdir(parents=True)
        index = f'words = ["--resolver", "{engine}"]\n' + given.text("index.toml")
        run = given.changed(index=index)
        refused = case.startswith("lock_refusals/")
        result_of.append(refusal(run, folder).partition("\n")[0] if refused else decisions(run, folder))
    return result_of


@pytest.mark.parametrize("case", BY_ALL)
def test_all_resolvers_say_the_same(tmp_path: Path, case: str) -> None:
    first, *others = by_all(case, tmp_path)
    assert others == [first] * (len(RESOLVERS) - 1)


def test_there_are_cases() -> None:
    assert all(len([case for case in CASES if case.startswith(f"{group}/")]) > 20 for group in OUTCOMES)
