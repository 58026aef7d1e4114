"""pip's explanations as one line of a message: what excludes what, without paths of this run or a traceback."""

from __future__ import annotations

import pytest

from envspec.resolve.pypi.pip_tools import pip_reason

TRACEBACK = (
    "Traceback (most recent call last):\n  File ...\n"
    "pip._vendor.resolvelib.resolvers.ResolutionImpossible: [RequirementInformation(requirement="
    "SpecifierRequirement('shared<2'), parent=LinkCandidate('http://index.invalid/k/files/one/"
    "One_x-1.0%2Bcu1-py3-none-any.whl (from http://index.invalid/k/simple/one/)')), RequirementInformation("
    "requirement=SpecifierRequirement('shared>=2'), parent=None)]\n\nThe above exception was the direct cause\n"
)
CANNOT = (
    "  ERROR: Cannot install -r /tmp/envspec-x/requirements.in (line 1) and {} because of conflicting dependencies.\n"
)


def test_what_excludes_what_is_read_from_the_traceback() -> None:
    stderr = CANNOT.format("-r /tmp/x/requirements.in (line 2)") + TRACEBACK
    assert pip_reason(stderr, ["one", "shared>=2"]) == (
        "these exclude each other: one-x 1.0+cu1 needs shared<2; the spec requires shared>=2"
    )


ONE_CAUSE = "Traceback (\nResolutionImpossible: [RequirementInformation(requirement={})]\n"
LINK = "LinkCandidate('http://index.invalid/files/one/one-2.0-py3-none-any.whl')"


def test_releases_for_other_pythons_are_named_without_the_bound_of_the_index() -> None:
    stderr = "  ERROR: Ignored: 2.0 Requires-Python >=3.12,<0.dev0\n  ERROR: No one (from versions: none)\n"
    stderr += ONE_CAUSE.format("SpecifierRequirement('one'), parent=None")
    assert pip_reason(stderr, ["one"]) == "Ignored: 2.0 Requires-Python >=3.12 No one (from versions: none)"


def test_the_python_that_runs_pip_is_not_named() -> None:
    pythons = "'!=3.11.9,<0.dev0,>=3.12'"
    stderr = f"  ERROR: Package 'one' requires a different Python: 3.11.7 not in {pythons}\n"
    stderr += ONE_CAUSE.format(f"RequiresPythonRequirement({pythons}), parent={LINK}")
    assert pip_reason(stderr, ["one"]) == "one 2.0 needs Python !=3.11.9,>=3.12"


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        (CANNOT.format("app"), "Cannot install one>=1 and app because of conflicting dependencies."),
        (
            "ERROR: Could not find a version that satisfies the requirement one>=1 (from versions: 0.1)\nTraceback (\n",
            "Could not find a version that satisfies the requirement one>=1 (from versions: 0.1)",
        ),
        ("WARNING: old pip\nERROR: Ignored: 3.0 needs >=3.13\nERROR: No\n", "Ignored: 3.0 needs >=3.13 No"),
        (
            "  error: it failed\n  \u00d7 Building\n  \u2502 exit code: 1\n  \u2570\u2500> boom\n",
            "it failed Building exit code: 1 boom",
        ),
        ("Traceback (most recent call last):\n  boom\n", "Traceback (most recent call last): boom"),
        ("ERROR: line -r /tmp/x.in (line 9) is not there\n", "line -r /tmp/x.in (line 9) is not there"),
    ],
)
def test_pips_words_without_its_signs(stderr: str, text: str) -> None:
    assert pip_reason(stderr, ["one>=1", "two"]) == text
