"""When a package that is years old is worth a warning."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from envspec.models import Dependent, Package, Rejected, WheelFile
from envspec.resolve.pypi.packages import far_back

AS_OF = datetime(2026, 11, 15, tzinfo=timezone.utc)
LONG_AGO = datetime(2024, 2, 5, tzinfo=timezone.utc)
LATELY = datetime(2026, 2, 5, tzinfo=timezone.utc)
BY_WIDEDEEP = "pytorch-widedeep needs numpy<2.0.0,>=1.21.6"
BY_SPEC = "the spec requires numpy<2"


def _numpy(why: str, askers: tuple[str, ...], uploaded: datetime) -> Package:
    file = WheelFile("default", "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.whl", "0" * 64, 1)
    asked = tuple(Dependent(name, "numpy") for name in askers)
    return Package("numpy", "1.26.4", file, asked, uploaded, Rejected("2.4.6", why))


def test_a_package_of_the_spec_that_another_holds_back_is_reported_with_the_reason() -> None:
    message = far_back(_numpy(BY_WIDEDEEP, ("pytorch-widedeep", "spec"), LONG_AGO), False, AS_OF)
    assert message == f"numpy 1.26.4 is from 2024-02; 2.4.6 was not taken: {BY_WIDEDEEP}"


@pytest.mark.parametrize("why", [BY_SPEC, f"{BY_WIDEDEEP}; {BY_SPEC}"])
def test_a_bound_that_the_spec_itself_states_is_no_news(why: str) -> None:
    assert far_back(_numpy(why, ("pytorch-widedeep", "spec"), LONG_AGO), False, AS_OF) is None


def test_an_ordinary_bound_on_what_the_spec_does_not_name_is_no_news() -> None:
    assert far_back(_numpy(BY_WIDEDEEP, ("pytorch-widedeep",), LONG_AGO), False, AS_OF) is None


def test_a_package_that_the_resolver_went_back_on_is_reported_though_nobody_names_it() -> None:
    assert far_back(_numpy("needs x>=2, and x is 1", ("pytorch-widedeep",), LONG_AGO), True, AS_OF) is not None


def test_a_package_of_this_year_is_not_far_back() -> None:
    assert far_back(_numpy(BY_WIDEDEEP, ("pytorch-widedeep", "spec"), LATELY), False, AS_OF) is None
