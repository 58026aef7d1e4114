"""What a wheel requires, and a lock that was made without it does not have."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from envspec.models import Provided, Resolution
from envspec.operations.build_wheels import unmet_requirements
from envspec.structs import replace
from tests.support.builders.locks import X86, conda, package, resolution

OWN = replace(package("own", "1.0"), extras=("fast",))
LIB = replace(package("lib", "2.9.1+cu128"), extras=("a", "b-c"))
PART: Resolution = replace(
    resolution(X86, OWN, LIB, package("next", "3.0rc1")),
    conda=(conda("libnum", "1.5", provides=(Provided("num", "1.5"),)),),
)
OVERRIDES = {"gone": None, "next": SpecifierSet("<4")}


@pytest.mark.parametrize(
    ("requirement", "unmet"),
    [
        ("Lib==2.9.1", None),
        ("lib[a,B_C]>=2", None),
        ("lib<2.9; python_version < '3'", None),
        ("lib @ https://example.com/lib.whl", None),
        ("next<3", None),
        ("num[x]>=1", None),
        ("own[fast]", None),
        ("gone>=2", None),
        ("absent; extra == 'slow'", None),
        ("not a requirement !", None),
        ("absent; extra == 'fast'", ("absent", "not in the lock")),
        ("Absent.Too>=1; sys_platform == 'linux'", ("Absent.Too>=1", "not in the lock")),
        ("lib>=3", ("lib>=3", "the lock has 2.9.1+cu128")),
        ("num>=2", ("num>=2", "the lock has 1.5")),
        ("lib[d]", ("lib[d]", "the lock has it without d")),
    ],
)
def test_unmet(requirement: str, unmet: tuple[str, str] | None) -> None:
    metadata = f"Metadata-Version: 2.1\nName: own\nVersion: 1.0\nRequires-Dist: {requirement}\n".encode()
    assert unmet_requirements(metadata, OWN, PART, OVERRIDES) == ([unmet] if unmet else [])
