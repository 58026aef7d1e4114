"""Each case under golden/lock_* is a spec, its indexes and channels, and the outcome of locking it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envspec.resolve import RESOLVERS
from tests.support.ahead import ahead
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


@pytest.fixture(scope="module")
def result_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    root = tmp_path_factory.mktemp("golden")

    def outcome(case: str) -> str:
        (root / case).mkdir(parents=True)
        return OUTCOMES[case.partition("/")[0]](read_case(GOLDEN / f"{case}.txtar"), root / case)

    with ahead(request, outcome) as results:
        yield results


@pytest.mark.parametrize("case", CASES)
def test_case(result_of: Callable[[str], str], case: str) -> None:
    read_case(GOLDEN / f"{case}.txtar").check(result_of(case))


def test_uv_explains_a_conflict(tmp_path: Path) -> None:
    """The one assertion of uv's wording; the cases have the names that it contains."""
    _, ran, _ = play(read_case(GOLDEN / "lock_refusals" / "conflict-below.txtar"), tmp_path)
    assert "all versions of other depend on shared>=2 and all versions of one depend on shared<2" in ran.error
    assert "you require one and other" in ran.error


#: Resolved by all resolvers, for the Python and the platform at hand: what each has its own ways with.
BY_ALL = [
    "lock_decisions/backtracks-far",
    "lock_decisions/extras",
    "lock_decisions/overrides",
    "lock_decisions/private-index",
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
HERE = {("linux", "x86_64"): "linux-64", ("linux", "aarch64"): "linux-aarch64"}.get((sys.platform, platform.machine()))


def by_all(case: str, root: Path) -> list[str]:
    """What each resolver makes of a case, for this Python and platform; of a refusal, the exit code."""
    given = read_case(GOLDEN / f"{case}.txtar")
    result_of = []
    for engine in RESOLVERS:
        folder = root / engine
        folder.mkdir(parents=True)
        spec = given.text("spec.toml")
        spec = spec.replace('"3.11.7"', f'"{platform.python_version()}"').replace('"linux-64"', f'"{HERE}"')
        index = f'words = ["--resolver", "{engine}"]\n' + given.text("index.toml")
        run = given.changed(spec=spec, index=index)
        refused = case.startswith("lock_refusals/")
        result_of.append(refusal(run, folder).partition("\n")[0] if refused else decisions(run, folder))
    return result_of


@pytest.fixture(scope="module")
def result_of_all(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], list[str]]]:
    root = tmp_path_factory.mktemp("all")
    with ahead(request, lambda case: by_all(case, root / case), "of_all") as results:
        yield results


@pytest.mark.skipif(HERE is None, reason="pip-tools resolves for Linux on itself")
@pytest.mark.parametrize("of_all", BY_ALL)
def test_all_resolvers_say_the_same(result_of_all: Callable[[str], list[str]], of_all: str) -> None:
    first, *others = result_of_all(of_all)
    assert others == [first] * (len(RESOLVERS) - 1)


def test_there_are_cases() -> None:
    assert all(len([case for case in CASES if case.startswith(f"{group}/")]) > 20 for group in OUTCOMES)
