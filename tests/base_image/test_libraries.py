"""System libraries that packages load, where no case of golden/lock_decisions can have it; and the rows."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from envspec.base_image.libraries import LIBPYTHON, library_warnings
from envspec.base_image.plan import decide_settings
from envspec.facts import load_facts
from envspec.models import Python, Resolution
from envspec.reasons import words
from envspec.spec import parse_spec
from envspec.structs import replace
from tests.support.builders.locks import ARM, X86, conda, conda_resolution, package, resolution

FACTS = load_facts()
OPENCV = package("opencv-python", "4.10.0.84")


def _missing(rest: str, *resolutions: Resolution) -> list[str]:
    text = f'[env]\nname = "x"\npython = "3.12"\nplatforms = ["linux-64", "linux-aarch64"]\n{rest}'
    return list(library_warnings(parse_spec(text, "spec.toml", datetime.now(timezone.utc)), resolutions, FACTS))


def test_one_warning_for_each_platform_with_its_own_release() -> None:
    arm = '[cuda.platform.linux-aarch64]\nos = "ubuntu22.04"\n'
    first, second = _missing(f"[cuda]\n{arm}", resolution(X86, OPENCV), resolution(ARM, OPENCV))
    assert first.startswith("linux-64: opencv-python 4.10.0.84 loads libGL.so.1, libgthread-2.0.so.0, which neither")
    assert 'add "libgl1", "libglib2.0-0t64" to [system] apt' in first
    assert "linux-aarch64: opencv-python 4.10.0.84" in second
    assert 'add "libgl1", "libglib2.0-0" to [system] apt' in second


def test_none_reports_nothing() -> None:
    assert _missing('[cuda]\n[system]\nlibraries = "none"\n', resolution(X86, OPENCV)) == []


def test_what_a_base_or_conda_may_bring_is_said() -> None:
    """What is in a base of the user's own and in conda's packages is unknown."""
    on_conda = conda_resolution(X86, [conda("libgl", "1.7")], OPENCV)
    (text,) = _missing('[cuda]\n[image]\nbase = "corp/base:1"\nglibc = "2.35"\n', on_conda)
    assert "ubuntu24.04 has (unless corp/base:1 or conda's packages bring it): add" in text


@pytest.mark.parametrize("key", ["", 'os = "debian12"\n'])
def test_names_of_a_base_whose_system_is_not_stated_are_said(key: str) -> None:
    text = '[env]\nname = "x"\npython = "3.11"\n[cuda]\n[system]\nlibraries = "auto"\n'
    text += f'[image]\nbase = "corp/base:1"\nglibc = "2.36"\npython = "3.11.2"\n{key}'
    spec = parse_spec(text, "spec.toml", datetime.now(timezone.utc))
    resolutions = [resolution(X86, OPENCV), resolution(ARM, OPENCV)]
    image, _ = decide_settings(spec, resolutions, FACTS)
    assert image.apt == ("libgl1", "libglib2.0-0" if key else "libglib2.0-0t64")
    warning = (
        '[system] libraries = "auto" adds libgl1, libglib2.0-0t64, which are names of ubuntu24.04, and the system of '
        'corp/base:1 is not stated: add it to [image], such as os = "debian12"'
    )
    assert list(library_warnings(spec, resolutions, FACTS)) == ([] if key else [warning])


def test_two_platforms_are_one_reason() -> None:
    text = '[env]\nname = "x"\npython = "3.12"\n[cuda]\n[system]\nlibraries = "auto"\n'
    spec = parse_spec(text, "spec.toml", datetime.now(timezone.utc))
    image, decisions = decide_settings(spec, [resolution(X86, OPENCV), resolution(ARM, OPENCV)], FACTS)
    assert image.apt == ("libgl1", "libglib2.0-0t64")
    assert [words(each.why).count("opencv-python") for each in decisions if each.what == "image.apt"] == [1]


@pytest.mark.parametrize("os", ["ubuntu22.04", "ubuntu24.04", "debian12"])
def test_every_library_that_a_row_names_is_in_every_release(os: str) -> None:
    """Of FFmpeg one of the majors; and what a base has is in no package to add."""
    row = FACTS.libraries_of(os)
    assert row is not None
    for need in FACTS.library_needs:
        for entry in need.libraries:
            names = {name.strip() for name in entry.split("|")}
            if names == {LIBPYTHON}:
                continue
            assert names & (set(row.packages) | set(row.base)), (need.package, entry)
    assert not set(row.packages) & set(row.base)
    assert {each for packages in row.contains.values() for each in packages} <= set(row.packages.values())


@pytest.mark.parametrize(
    ("source", "version", "added", "unknown"),
    [
        ("system", "3.10.12", "libpython3.10-dev", ""),
        ("base", "3.10.12", "libpython3.10-dev", ""),
        # Not the release's own Python: no package of it has the library.
        ("base", "3.11.2", "", "libpython3.11.so.1.0"),
        # Images have a link to theirs.
        ("standalone", "3.11.14", "", ""),
        ("conda", "3.11.14", "", ""),
    ],
)
def test_the_library_of_python_itself(source: str, version: str, added: str, unknown: str) -> None:
    codec = resolution(X86, package("torchcodec", "0.7.0"), python=version)
    part = replace(codec, target=replace(codec.target, python=Python(version, source)))
    texts = _missing('[cuda]\nos = "ubuntu22.04"\n', part)
    assert f'add "ffmpeg"{f", {chr(34)}{added}{chr(34)}" if added else ""} to' in texts[0]
    assert [text.rpartition("contains ")[2].partition(" (")[0] for text in texts[1:]] == ([unknown] if unknown else [])
    newer = replace(part, packages=(package("torchcodec", "0.16.0"),))
    assert not any("libpython" in text for text in _missing('[cuda]\nos = "ubuntu22.04"\n', newer))


def test_of_ffmpeg_the_major_of_the_release() -> None:
    codec = resolution(X86, package("torchcodec", "0.7.0"))
    texts = [_missing(f'[cuda]\nos = "{os}"\n', codec)[0] for os in ("ubuntu22.04", "ubuntu24.04")]
    assert ["libavcodec.so.58," in texts[0], "libavcodec.so.60," in texts[1]] == [True, True]
    assert all('add "ffmpeg"' in text for text in texts)
