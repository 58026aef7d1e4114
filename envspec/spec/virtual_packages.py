"""Virtual packages: what the environment's machine has, in conda's words."""

from __future__ import annotations

import re
from typing import Final

from envspec.model import Platform
from envspec.spec.faults import BadValue
from envspec.spec.match_specs import VERSION
from envspec.spec.words import shown

#: The name that holds a microarchitecture, in its build string.
ARCHSPEC: Final = "__archspec"
#: The name that holds the newest CUDA that the driver runs.
CUDA: Final = "__cuda"

_NAME: Final = r"__[a-z][a-z0-9_]*"
# archspec's names are of this form: x86_64_v3, zen4, neoverse_n1, armv8.2a.
_MICROARCHITECTURE: Final = r"[a-z][a-z0-9_.]*"
_LONGEST: Final = 100

#: Where the virtual packages exist that not every platform has.
#: Source: conda's documentation, "Managing virtual packages".
PLACES: Final = {
    "__unix": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.OSX_ARM64}),
    "__linux": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64}),
    "__glibc": frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64}),
    "__osx": frozenset({Platform.OSX_ARM64}),
    "__win": frozenset({Platform.WIN_64}),
    CUDA: frozenset({Platform.LINUX_64, Platform.LINUX_AARCH64, Platform.WIN_64}),
}


def read_virtual_name(text: str) -> str:
    """The name of a virtual package; BadValue if it is none."""
    if re.fullmatch(_NAME, text) and len(text) <= _LONGEST:
        return text
    raise BadValue(
        f"{shown(text)} is not the name of a virtual package", 'two underscores and lower-case letters: "__linux"'
    )


def read_virtual_value(text: str) -> str:
    """What a virtual package may be set to, whatever its name; BadValue if it is nothing of the kind."""
    if len(text) <= _LONGEST and (re.fullmatch(VERSION, text) or re.fullmatch(_MICROARCHITECTURE, text)):
        return text
    raise BadValue(
        f"{shown(text)} is neither a version nor a microarchitecture", 'write "6.8", or "x86_64_v3" for `__archspec`'
    )


def version_and_build(name: str, value: str) -> tuple[str, str]:
    """The version and the build string of a virtual package: `__archspec`'s value is its build, other values versions.

    Raises:
        BadValue: a value of the other kind.
    """
    if name == ARCHSPEC:
        if not re.fullmatch(_MICROARCHITECTURE, value):
            raise BadValue(f"{shown(value)} is not a microarchitecture", 'write archspec\'s name for it: "x86_64_v3"')
        return "1", value
    if not re.fullmatch(VERSION, value):
        raise BadValue(f"{shown(value)} is not a version", f'write the version that {name} has: "6.8"')
    return value, "0"
