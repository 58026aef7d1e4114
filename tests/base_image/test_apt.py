"""The date of the archives from which apt installs."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envspec.base_image.apt import archive_time, date_apt, follows_base, newest_archive
from envspec.facts import load_facts
from envspec.models import BaseImage, Decision, ImageSettings, PinnedDigest, Platform
from envspec.reasons import has_code, reason
from envspec.spec import SpecError, parse_spec
from envspec.structs import replace

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SETTINGS = ImageSettings(compiler="apt", apt=("gcc",))
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
MOMENTS = st.integers(0, 86400 * 3650).map(lambda seconds: datetime(2020, 1, 1, tzinfo=timezone.utc) + seconds * SECOND)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def base(created: str | None = None, name: str = "docker.io/nvidia/cuda", os: str = "ubuntu24.04") -> BaseImage:
    pinned = PinnedDigest(
        Platform.LINUX_64, f"sha256:{'ab' * 32}", "registry", "index", created=at(created) if created else None
    )
    return BaseImage(name, "1", None, None, os, (pinned,))


def dated(
    *bases: BaseImage, as_of: str = "2026-11-15", system: str = "", settings: ImageSettings = SETTINGS
) -> tuple[ImageSettings, tuple[Decision, ...]]:
    spec = parse_spec(f'[env]\nname = "x"\npython = "3.12"\n{system}', "spec.toml", NOW)
    return date_apt(settings, spec, at(as_of), bases or (base(),), load_facts(), newest_archive(NOW))


@pytest.mark.parametrize(
    ("as_of", "created", "expected"),
    [
        # "today" excludes today's uploads; the archive of that midnight is not final.
        ("2026-11-20", None, "2026-11-19"),
        ("2026-11-19T23:59:59", None, "2026-11-18"),
        ("2026-11-15", "2025-03-10T00:00:00", "2026-11-14"),
        # A base that is newer: no package of the archive is older than the base's.
        ("2026-11-01", "2026-11-10T14:30:00", "2026-11-11"),
        # So new that there is no such archive yet.
        ("2026-11-01", "2026-11-20T09:00:00", "2026-11-19"),
        ("2026-11-01", "2026-11-19T09:00:00", "2026-11-19"),
        # What tools write into images that are the same every time.
        ("2026-11-15", "0001-01-01T00:00:00", "2026-11-14"),
        ("0001-01-01", "0001-01-01T00:00:00", "2023-03-01"),
    ],
)
def test_the_later_of_both(as_of: str, created: str | None, expected: str) -> None:
    settings, (decision,) = dated(base(created, os="ubuntu22.04"), as_of=as_of)
    assert settings.snapshot == at(expected)
    assert (decision.what, decision.value) == ("image.snapshot", f"{expected}T00:00:00Z")
    assert has_code(decision.why, "apt-base-age") is (created is None)


@given(as_of=MOMENTS, created=MOMENTS, age=st.timedeltas(timedelta(0), timedelta(days=9)))
def test_it_is_a_midnight_that_was_over_and_can_be_computed_again(
    as_of: datetime, created: datetime, age: timedelta
) -> None:
    now = max(as_of, created) + age
    found = archive_time(as_of, created, newest_archive(now))
    assert found == found.replace(hour=0, minute=0, second=0, microsecond=0)
    assert now - found >= DAY
    assert max(as_of, created) - found <= 2 * DAY
    assert archive_time(as_of, created, found) == found
    if age > 2 * DAY:
        # Nobody who locks later gets another one.
        assert archive_time(as_of, created, newest_archive(now + age)) == found


@given(as_of=MOMENTS, created=MOMENTS, recorded=MOMENTS)
def test_another_recorded_time_is_never_far_from_it(as_of: datetime, created: datetime, recorded: datetime) -> None:
    found = archive_time(as_of, created, recorded)
    assert -2 * DAY <= found - max(as_of, created) <= DAY


def test_archives_have_a_first_snapshot() -> None:
    settings, (decision,) = dated(base(os="ubuntu22.04"), as_of="2022-06-01")
    assert settings.snapshot == at("2023-03-01")
    assert decision.why == (reason("apt-first"),)


def test_the_spec_decides() -> None:
    settings, (decision,) = dated(base("2026-11-10"), system="[system]\nsnapshot = 2026-10-01T12:00:00Z\n")
    assert settings.snapshot == at("2026-10-01T12:00:00")
    assert decision.source == "the spec: [system] snapshot"
    settings, (decision,) = dated(base("2026-11-10"), system="[system]\nsnapshot = false\n")
    assert (settings, decision.value) == (SETTINGS, "none")


def test_false_is_a_value_in_variants_too() -> None:
    dated = "[system]\nsnapshot = 2026-10-01\n[variants.today.system]\nsnapshot = false\n"
    text = f'[env]\nname = "x"\npython = "3.12"\n{dated}'
    spec = parse_spec(text, "spec.toml", NOW)
    system = spec.variant("today").system
    assert spec.system and system and (spec.system.snapshot, system.snapshot) == (at("2026-10-01"), False)
    with pytest.raises(SpecError, match="or false for today's archive"):
        parse_spec(text.replace("2026-10-01", "true"), "spec.toml", NOW)


def test_nvidias_images_have_a_source_without_snapshots() -> None:
    for name in ("docker.io/nvidia/cuda", "nvidia/cuda"):
        assert dated(base(name=name))[0].undated == ("https://developer.download.nvidia.com/compute/cuda/repos",)
    assert dated(base(name="docker.io/library/ubuntu"))[0].undated == ()


def test_without_packages_there_is_no_date() -> None:
    nothing = replace(SETTINGS, apt=())
    assert dated(settings=nothing) == (nothing, ())


@pytest.mark.parametrize(
    ("text", "follows"),
    [
        ("", True),
        ('[image]\ncompiler = "none"\n', False),
        ('[image]\ncompiler = "none"\n[system]\napt = ["git"]\n', True),
        ('[image]\ncompiler = "none"\n[services]\nssh = {}\n', True),
        ("[system]\nsnapshot = false\n", False),
        ("[system]\nsnapshot = 2026-10-01\n", False),
    ],
)
def test_when_the_registry_is_needed_for_it(text: str, follows: bool) -> None:
    spec = parse_spec(f'[env]\nname = "x"\npython = "3.12"\n{text}', "spec.toml", NOW)
    assert follows_base(spec) is follows
