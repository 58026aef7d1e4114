"""pip-tools beside uv: the same lock for every Python and platform, whichever Python and machine run pip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders.ecosystem import releases
from tests.support.builders.projects import File
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import User, refused

PIP_TOOLS = ("--resolver", "pip-tools")
PLATFORMS = ("linux-64", "linux-aarch64", "osx-arm64", "win-64")
#: At least one of them is older, newer, or of another series than the Python that runs this.
PYTHONS = ("3.11.5", "3.11.12", "3.13.1")

NEW = 'python_full_version >= "3.11.10"'
OLD = 'python_full_version < "3.11.10"'
REQUIRES = (
    f"for-new; {NEW}",
    f"for-old; {OLD}",
    'for-later-series; python_version >= "3.11.5"',
    'by-implementation; implementation_version >= "3.11.10"',
    "on-linux; sys_platform == 'linux'",
    "on-arm; platform_machine == 'aarch64' or platform_machine == 'arm64'",
    "by-release; platform_release >= '1'",
    "by-kernel; 'Debian' in platform_version",
    f"part[new,old]; {NEW}",
)
EXTRAS = {
    "new": (f"extra-for-new; {NEW}", f"extra-for-old; {OLD}"),
    "never": ("nothing; sys_platform == 'java'",),
}
#: Without fields for its extras, as old wheels are.
PART = (f"either; {NEW} or extra == 'old'", f'both; ({OLD} or extra == "new") and sys_platform != "win32"')
LEAVES = (
    *("for-new", "for-old", "for-later-series", "by-implementation", "on-linux", "on-arm", "by-release"),
    *("by-kernel", "either", "both", "extra-for-new", "extra-for-old", "nothing"),
)


def built_for(name: str, version: str, *tags: str, requires: tuple[str, ...] = ()) -> list[File]:
    return [File(wheel(name, version, tag=tag, requires=requires)) for tag in tags]


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    files = releases("\n".join(f"{name} 1.0.0" for name in LEAVES))
    files += releases("bounded 1.0.0\nbounded 2.0.0\nline 1.0.0\nelsewhere 1.0.0\npatched 1.0.0\nskips 1.0.0")
    files += [
        File(wheel("app", "1.0.0", requires=REQUIRES, extras=EXTRAS)),
        File(wheel("part", "1.0.0", requires=PART)),
        File(wheel("patched", "2.0.0", requires_python=">=3.11.10")),
        File(wheel("skips", "2.0.0", requires_python="!=3.11.9,>=3.8")),
        File(wheel("stated", "1.0.0")),
        File(wheel("refused", "1.0.0", requires_python="<3.11.12")),
        File(wheel("late", "1.0.0", requires_python=">=3.99.1")),
    ]
    # For a newer glibc, or a newer macOS, than that of most machines; and of several wheels, the best one's metadata.
    compiled = [f"cp{series}-cp{series}" for series in ("311", "313")]
    for tag in compiled:
        files += built_for("native", "1.0.0", f"{tag}-manylinux_2_17_x86_64", f"{tag}-manylinux_2_17_aarch64")
        files += built_for("native", "1.0.0", f"{tag}-macosx_11_0_arm64", f"{tag}-win_amd64")
        new = (f"{tag}-manylinux_2_39_x86_64", f"{tag}-macosx_14_0_arm64")
        files += built_for("native", "2.0.0", *new, requires=("for-old",))
    files += built_for("native", "2.0.0", "py3-none-any", requires=("for-new",))
    with IndexServer(files) as server:
        yield server


@pytest.mark.parametrize("python", PYTHONS)
def test_both_engines_lock_the_same(python: str, tmp_path: Path, index: IndexServer) -> None:
    lines = ("app[new,never]", "patched", "skips", "stated", "bounded", "native", f"line; {NEW}", f"elsewhere; {OLD}")
    constraints = f"constraints = ['bounded<2; {OLD}', 'bounded>1; {NEW}']"
    found = []
    for words in ((), PIP_TOOLS):
        user = User(tmp_path / (words or ("uv",))[-1], index.url)
        user.wants(*lines, python=python, platforms=PLATFORMS, pip=constraints, as_of="2026-01-01T00:00:00Z")
        user.locked(*words)
        found.append(user)
    uv, pip = found
    assert pip.files() == uv.files()
    is_new = python != "3.11.5"
    pins = pip.pins()
    assert pins["native"] == "2.0.0"
    assert ("for-new" in pins, "extra-for-new" in pins, "line" in pins) == (is_new, is_new, is_new)
    assert ("extra-for-old" in pins, "elsewhere" in pins) == (not is_new, not is_new)
    assert (pins["bounded"], pins["patched"]) == (("2.0.0", "2.0.0") if is_new else ("1.0.0", "1.0.0"))
    assert ("for-later-series" in pins) == (python == "3.13.1")
    assert "on-linux" in pins and "on-linux" not in pip.pins("win-64")
    assert "on-arm" in pip.pins("osx-arm64") and "on-arm" not in pins
    assert pins["skips"] == "2.0.0"


def test_a_release_that_excludes_the_targets_python(tmp_path: Path, index: IndexServer) -> None:
    user = User(tmp_path, index.url)
    user.wants("skips", "refused", python="3.11.9")
    user.locked(*PIP_TOOLS)
    assert user.pins() == {"skips": "1.0.0", "refused": "1.0.0"}
    user.wants("refused", python="3.11.12")
    assert "1.0.0 Requires-Python <3.11.12 Could" in refused(user.locks(*PIP_TOOLS), 4)
    user.wants("late")
    assert "1.0.0 Requires-Python >=3.99.1 Could" in refused(user.locks(*PIP_TOOLS), 4)
