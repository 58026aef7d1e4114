"""What `envspec lock` warns of, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.builders.ecosystem import release
from tests.support.user import User

#: `plugin` follows `frame`, version by version.
FAMILY = [
    release("frame", "1.0.0", "2020-01-01"),
    release("frame", "2.0.0", "2025-05-01"),
    release("plugin", "1.0.0", "2020-01-02", requires=["frame==1.*"]),
    release("plugin", "2.0.0", "2025-05-02", requires=["frame>=2"]),
    release("anchor", "1.0.0", "2025-01-01", requires=["frame<2"]),
]


@pytest.fixture
def user(tmp_path: Path, serve: Serve) -> User:
    return User(tmp_path, serve(FAMILY).url)


def test_what_follows_a_bound_of_the_spec_is_no_news(user: User) -> None:
    user.wants("frame==1.*", "plugin")
    ran = user.locks()
    assert user.pins() == {"frame": "1.0.0", "plugin": "1.0.0"}
    assert ran.warnings == []
    newest = user.packages()["plugin"]["rejected"]
    assert newest == {"version": "2.0.0", "why": "needs frame>=2, and the spec requires frame==1.*"}


def test_what_follows_another_package_is_reported(user: User) -> None:
    user.wants("anchor", "plugin", "frame")
    ran = user.locks()
    assert user.pins() == {"anchor": "1.0.0", "frame": "1.0.0", "plugin": "1.0.0"}
    assert ran.warnings == [
        "linux-64: frame 1.0.0 is from 2020-01; 2.0.0 was not taken: anchor needs frame<2; plugin needs frame==1.*",
        "linux-64: plugin 1.0.0 is from 2020-01; 2.0.0 was not taken: needs frame>=2, and frame is 1.0.0",
    ]


def test_a_lock_without_torch_says_nothing_of_torch(user: User) -> None:
    user.wants("frame>=2")
    ran = user.locks()
    assert ran.status == 0
    assert "torch" not in ran.stderr + user.files()["envspec.lock"].decode()


def test_a_base_without_digest_is_reported_once_with_what_to_do(user: User) -> None:
    rest = '[cuda]\nversion = "12.8"\n[image]\nbase = "127.0.0.1:9/team/cuda:12.8"\nglibc = "2.35"\n'
    user.wants("frame>=2", rest=rest)
    ran = user.locks()
    assert ran.status == 0, ran.stderr
    assert ran.warnings == [
        "linux-64: 127.0.0.1:9/team/cuda:12.8 is locked without its digest (the spec names no digest; "
        "http://127.0.0.1:9/v2/team/cuda/manifests/12.8: no connection (Connection refused)): lock again "
        "where 127.0.0.1:9 answers, or state the digest in the spec ([image] base)"
    ]
