"""When the base image was created, read from its registry, and the date of apt's archives that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from envspec.lockfile.folder import read_lock
from envspec.models import Lock
from envspec.reasons import words
from envspec.structs import replace
from tests.support.builders.ecosystem import release
from tests.support.builders.environments import write_lock
from tests.support.builders.images import ARM, X86, BaseMade, ImageUser, RegistryInThread, hold_base, make_base
from tests.support.servers.index import IndexServer
from tests.support.servers.registry import PushRegistry
from tests.support.user import succeeded

#: Nothing in envspec's data is known of this image.
REPOSITORY = "docker.io/team/base"
CREATED = "2026-09-10T14:30:00.123456789Z"


class Owner(ImageUser):
    """A user with a base of their own, which has a Python."""

    def __init__(self, folder: Path, index: str, registry: RegistryInThread) -> None:
        super().__init__(folder, index, registry.host)
        self.registry = registry

    def has_base(self, *platforms: Any, created: str | None = CREATED) -> BaseMade:
        return hold_base(self.registry.held, make_base(*platforms, created=created), "team/base", "1")

    def uses(self, reference: str, system: str = 'apt = ["git"]', as_of: str | None = "2026-06-01T00:00:00Z") -> None:
        image = f'[image]\nbase = "{REPOSITORY}{reference}"\nglibc = "2.36"\npython = "3.11.2"\ncompiler = "none"\n'
        self.wants("app", as_of=as_of, python="3.11", rest=f"{image}[system]\n{system}\n")

    @property
    def locked_lock(self) -> Lock:
        return read_lock(self.lock)

    def times(self) -> tuple[str, str]:
        """The date of apt's archives, and the creation of the base on its first platform."""
        lock = self.locked_lock
        assert lock.base_image
        shown = (lock.image.snapshot, lock.base_image.digests[0].created)
        first, second = (f"{each:%Y-%m-%d %H:%M:%S}" if each else "" for each in shown)
        return first, second


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    with IndexServer([release("app", "1.0.0")]) as index, RegistryInThread(PushRegistry()) as registry:
        yield Owner(tmp_path, index.url, registry)


def test_a_base_that_is_newer_than_as_of_decides(owner: Owner) -> None:
    owner.has_base(X86, ARM)
    owner.uses(":1")
    owner.locked()
    assert owner.times() == ("2026-09-11 00:00:00", "2026-09-10 14:30:00")
    (decision,) = (each for each in owner.locked_lock.decisions if each.what == "image.snapshot")
    assert words(decision.why) == "the base image was created at 2026-09-10T14:30:00Z, after the day before as_of"
    # The digest and its creation stay, and need no registry.
    owner.registry.forget()
    before = owner.files()
    owner.uses(":1", system='apt = ["git"]\nlibraries = "none"')
    owner.locked("--offline")
    assert owner.times() == ("2026-09-11 00:00:00", "2026-09-10 14:30:00")
    assert owner.registry.held.asked == []
    owner.uses(":1")
    owner.locked()
    assert owner.files() == before
    assert owner.runs("lock", "--verify", owner.spec).status == 0


def test_a_digest_in_the_spec_needs_the_registry_for_its_creation_alone(owner: Owner) -> None:
    first = owner.has_base()
    owner.uses(f"@{first.digest}")
    owner.locked()
    assert owner.times() == ("2026-09-11 00:00:00", "2026-09-10 14:30:00")
    assert owner.runs("lock", "--verify", owner.spec).status == 0
    second = owner.has_base(created="2026-10-10T00:00:00+02:00")
    owner.uses(f"@{second.digest}")
    owner.locked()
    assert owner.times() == ("2026-10-10 00:00:00", "2026-10-09 22:00:00")
    owner.uses(f"@{second.digest}", system="apt = []")
    owner.registry.forget()
    owner.locked()


@pytest.mark.parametrize("created", [None, "yesterday", "2999-01-01T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_is_none(owner: Owner, created: str | None) -> None:
    owner.has_base(created=created)
    owner.uses(":1")
    owner.locked()
    assert owner.times()[0] == "2026-05-31 00:00:00"


def test_without_its_registry_as_of_decides(owner: Owner) -> None:
    base = owner.has_base()
    owner.uses(f"@{base.digest}")
    owner.locked(ENVSPEC_REGISTRY_MIRRORS="docker.io=127.0.0.1:9")
    assert owner.times() == ("2026-05-31 00:00:00", "")
    (decision,) = (each for each in owner.locked_lock.decisions if each.what == "image.snapshot")
    assert words(decision.why) == "the day before as_of; when the base image was created is not known"


def test_a_fact_may_state_it(owner: Owner) -> None:
    """For a digest that is known, where the registry has no such image."""
    tag, digest = "12.6.3-runtime-ubuntu24.04", f"sha256:{'ab' * 32}"
    fact = f'[[facts.digest]]\ntag = "{tag}"\ndigest = "{digest}"\nkind = "index"\nplatforms = ["linux-64"]\n'
    rest = f'[cuda]\nversion = "12.6"\n[system]\napt = ["git"]\n{fact}created = 2026-09-10T21:00:00Z\nsource = "me"\n'
    owner.wants("app", as_of="2026-06-01T00:00:00Z", python="3.11", rest=rest)
    owner.locked()
    assert owner.times() == ("2026-09-11 00:00:00", "2026-09-10 21:00:00")


def test_a_base_of_today_keeps_the_date_that_it_was_locked_with(owner: Owner) -> None:
    base = owner.has_base(X86, ARM, created=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}")
    owner.uses(f"@{base.digest}")
    owner.locked()
    lock = owner.locked_lock
    (pinned,) = lock.base_image.digests if lock.base_image else ()
    assert pinned.created and lock.image.snapshot
    assert lock.image.snapshot == pinned.created.replace(hour=0, minute=0, second=0) - timedelta(days=1)
    assert owner.runs("lock", "--verify", owner.spec).status == 0


def test_without_a_date_in_the_spec_an_upgrade_moves_it(owner: Owner) -> None:
    owner.has_base(created="2025-01-01T00:00:00Z")
    owner.uses(":1", as_of=None)
    owner.locked()
    lock = owner.locked_lock
    day = lock.as_of.replace(hour=0, minute=0, second=0)
    assert lock.image.snapshot == day - timedelta(days=1)
    past = datetime(2026, 3, 4, 5, tzinfo=timezone.utc)
    old = replace(lock, as_of=past, image=replace(lock.image, snapshot=datetime(2026, 3, 3, tzinfo=timezone.utc)))
    write_lock(owner.lock, old)
    owner.locked()
    assert owner.times()[0] == "2026-03-03 00:00:00"
    owner.locked("--upgrade")
    assert owner.locked_lock.image.snapshot != old.image.snapshot


def test_todays_archive_needs_no_registry(owner: Owner) -> None:
    base = owner.has_base()
    owner.uses(f"@{base.digest}", system='apt = ["git"]\nsnapshot = false')
    owner.locked()
    assert owner.times() == ("", "")
    assert owner.registry.held.asked == []
    exported = succeeded(owner.runs("export", owner.lock, "--format", "dockerfile")).stdout
    assert "apt-get update" in exported and "apt-sources.sh" not in exported


def test_a_changed_creation_is_found(owner: Owner) -> None:
    base = owner.has_base()
    owner.uses(f"@{base.digest}")
    owner.locked()
    lock = owner.locked_lock
    assert lock.base_image
    later = datetime(2026, 11, 1, tzinfo=timezone.utc)
    digests = tuple(replace(each, created=later) for each in lock.base_image.digests)
    forged = replace(lock, base_image=replace(lock.base_image, digests=digests))
    write_lock(owner.lock, forged)
    ran = owner.runs("lock", "--verify", owner.spec)
    assert ran.status == 3
    assert 'base_image.digests.linux-64.created: locked "2026-11-01 00:00:00+00:00", resolved "2026-09-10' in ran.stdout
