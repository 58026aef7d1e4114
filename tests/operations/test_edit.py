"""`envspec add` and `envspec remove`: the spec in place, the lock with it, and neither of both."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.conftest import Serve
from tests.support.builders.conda_channel import row, write_channel
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import wheel
from tests.support.servers.index import IndexServer
from tests.support.user import NAME, User, a_second_later, refused, succeeded

SPEC = """\
#:schema ../envspec.schema.json
[env]
name = "small"
python = "3.11.7"
platforms = ["linux-64"]  # for now

[pip]
# what we train with
dependencies = [
  "app",  # ours
]
"""
APP = [wheel("app", version, requires=["leaf>=1"]) for version in ("1.0", "2.0")]
LEAVES = [wheel("leaf", version) for version in ("1.0", "2.0")]
OTHER = wheel("other", "1.0", requires=["leaf<2"])


@pytest.fixture
def index(serve: Serve) -> IndexServer:
    return serve([File(APP[0]), File(LEAVES[0]), File(LEAVES[1]), File(OTHER)])


@pytest.fixture
def user(index: IndexServer, tmp_path: Path) -> User:
    """With a locked spec, the only one in `specs/`; newer versions have appeared since."""
    user = User(tmp_path, index.url)
    user.spec = tmp_path / "specs" / f"{NAME}.toml"
    user.spec.parent.mkdir()
    user.writes(SPEC)
    succeeded(user.runs("lock", NAME))
    return user


def test_a_new_requirement_moves_nothing_else(user: User, index: IndexServer) -> None:
    assert user.pins() == {"app": "1.0", "leaf": "2.0"}
    index.add(File(APP[1]))
    index.add(File(wheel("more", "1.0"), day("2025-03-01")))
    ran = succeeded(user.runs("add", "more"))
    assert user.spec.read_text(encoding="utf-8") == SPEC.replace("# ours\n", '# ours\n  "more",\n')
    assert user.pins() == {"app": "1.0", "leaf": "2.0", "more": "1.0"}
    assert f'specs/{NAME}.toml: added "more" to [pip] dependencies' in ran.stderr
    assert ran.stdout.splitlines()[-3:] == [
        f"specs/{NAME}.toml",
        f"locks/{NAME}/envspec.lock",
        f"locks/{NAME}/requirements.linux-64.txt",
    ]
    assert succeeded(user.runs("lock", NAME, "--check"))


@pytest.mark.parametrize("date", ["", "as_of = 2025-06-01\n"])
def test_a_release_after_the_date_of_the_lock_is_taken_if_that_is_said(
    user: User, index: IndexServer, date: str
) -> None:
    user.writes(SPEC.replace("\n\n[pip]", f"\n{date}\n[pip]"))
    succeeded(user.runs("lock", NAME))
    a_second_later()
    now = datetime.now(timezone.utc)
    index.add(File(APP[1], uploaded=now), File(wheel("late", "1.0"), uploaded=now))
    a_second_later()
    assert "no release of late was uploaded" in refused(user.runs("add", "late"), 2)
    succeeded(user.runs("add", "late", "--upgrade"))
    assert user.pins() == {"app": "1.0", "leaf": "2.0", "late": "1.0"}
    assert ("package_as_of = { late = " in user.spec.read_text(encoding="utf-8")) == bool(date)
    succeeded(user.runs("lock", NAME, "--check"))


@pytest.mark.parametrize("date", ["", "as_of = 2025-06-01\n"])
def test_an_upgrade_that_the_new_requirement_alone_makes_is_one(user: User, date: str) -> None:
    """The release is older than the lock's date: the old requirement excluded it."""
    user.writes(SPEC.replace("\n\n[pip]", f"\n{date}\n[pip]").replace('"app",', '"leaf<2",'))
    succeeded(user.runs("lock", NAME))
    ran = succeeded(user.runs("add", "leaf>=2", "--upgrade"))
    assert (user.pins(), ran.warnings) == ({"leaf": "2.0"}, [])


def test_what_a_new_requirement_excludes_moves_and_is_shown(user: User) -> None:
    ran = succeeded(user.runs("add", NAME, "other", "app>=1"))
    assert user.pins() == {"app": "1.0", "leaf": "1.0", "other": "1.0"}
    assert "leaf   down   2.0 -> 1.0" in ran.stdout
    assert 'replaced "app" by "app>=1" in [pip] dependencies' in ran.stderr


def test_what_moved_for_it_stays_when_it_is_removed(user: User) -> None:
    """Without a date in the spec; `--upgrade-package` is the way back. With one, the lock follows from the spec."""
    succeeded(user.runs("add", "other"))
    succeeded(user.runs("remove", "other"))
    assert user.spec.read_text(encoding="utf-8") == SPEC
    assert user.pins() == {"app": "1.0", "leaf": "1.0"}
    succeeded(user.runs("lock", NAME, "--upgrade-package", "leaf"))
    assert user.pins() == {"app": "1.0", "leaf": "2.0"}
    user.writes(SPEC.replace("\n\n[pip]", "\nas_of = 2025-06-01\n\n[pip]"))
    succeeded(user.runs("lock", NAME))
    before = user.files()
    succeeded(user.runs("add", "other"))
    assert user.files() != before
    succeeded(user.runs("remove", "other"))
    assert user.files() == before


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("add", "nothing-like-it"), 2, "specs/small.toml:11: pip.dependencies[1]: no such package: nothing-like-it"),
        (("add", "app>=7"), 2, "app>=7"),
        (("add", "app >> 7"), 2, '"app >> 7" is not a requirement'),
        (("add", "other", "other"), 2, "other is named twice"),
        (("add", "--constraint", "other @ https://example.org/other-1.0-py3-none-any.whl"), 2, "other"),
        (("add", NAME), 2, f"{NAME} is a spec, and no PACKAGE is named"),
        (("add", "none.toml", "other"), 2, 'there is no file "none.toml"'),
        (("remove", "leaf"), 2, "leaf is not in [pip] dependencies: it is locked because app requires it"),
        (("remove", "ap"), 2, "did you mean app?"),
        (("remove", "app==1"), 2, '"app==1" is not the name of a package'),
    ],
)
def test_neither_spec_nor_lock_changes_if_it_fails(
    user: User, words: tuple[str, ...], status: int, message: str
) -> None:
    before = user.files()
    assert message in refused(user.runs(*words), status)
    assert (user.spec.read_text(encoding="utf-8"), user.files()) == (SPEC, before)


def test_a_lock_that_cannot_be_written_leaves_the_spec(user: User) -> None:
    for path in user.lock.iterdir():
        path.unlink()
    user.lock.rmdir()
    user.lock.write_text("", encoding="utf-8")
    assert "is a file, not a folder" in refused(user.runs("add", "other"), 2)
    assert user.spec.read_text(encoding="utf-8") == SPEC


def test_a_dry_run_shows_it_and_writes_nothing(user: User) -> None:
    before = user.files()
    ran = succeeded(user.runs("add", "--constraint", "leaf<2", "--dry-run"))
    assert "leaf  down  2.0 -> 1.0" in ran.stdout
    assert "would add" in ran.stderr
    assert (user.spec.read_text(encoding="utf-8"), user.files()) == (SPEC, before)


def test_without_a_lock_only_the_spec_changes(user: User) -> None:
    before = user.files()
    document = json.loads(succeeded(user.runs("add", "other", "--no-lock", "--format", "json")).stdout)
    assert document == {
        "spec": f"specs/{NAME}.toml",
        "edits": [{"name": "other", "old": "", "new": "other", "list": "[pip] dependencies"}],
        "locks": [],
    }
    assert '"other"' in user.spec.read_text(encoding="utf-8")
    assert user.files() == before


def test_json_has_the_edits_and_what_moved(user: User) -> None:
    document = json.loads(succeeded(user.runs("add", "other", "--format", "json")).stdout)
    (locked,) = document["locks"]
    assert f"specs/{NAME}.toml" in locked["changed"]
    assert {"leaf", "other"} <= set(json.dumps(locked["diff"]).replace('"', " ").split())
    again = succeeded(user.runs("add", "other", "--format", "json"))
    assert json.loads(again.stdout) == {"spec": f"specs/{NAME}.toml", "edits": [], "locks": []}
    assert "nothing changed" in again.stderr


def test_the_spec_must_be_named_if_there_are_several(user: User) -> None:
    (user.spec.parent / "second.toml").write_text(SPEC.replace('"small"', '"second"'), encoding="utf-8")
    assert "there are several specs: second, small" in refused(user.runs("add", "other"), 2)
    succeeded(user.runs("add", "second", "other"))
    assert user.spec.read_text(encoding="utf-8") == SPEC


def test_variants_are_locked_together_with_it(user: User) -> None:
    user.writes(f'{SPEC}\n[variants.bare]\nwithout = ["app"]\n[variants.bare.pip]\ndependencies = ["leaf"]\n')
    succeeded(user.runs("lock", NAME))
    succeeded(user.runs("add", "other"))
    variant = user.folder / "locks" / f"{NAME}-bare" / "requirements.linux-64.txt"
    assert "other==1.0" in variant.read_text(encoding="utf-8")
    succeeded(user.runs("lock", NAME, "--check"))
    message = refused(user.runs("remove", "app"), 2)
    assert "not in the spec's dependencies" in message


def test_conda_packages_are_named_by_match_specs(user: User) -> None:
    succeeded(user.runs("add", "--conda", "ffmpeg >=7", "--no-lock"))
    assert user.spec.read_text(encoding="utf-8") == f'{SPEC}\n[conda]\ndependencies = ["ffmpeg >=7"]\n'
    message = refused(user.runs("remove", "ffmpeg", "--no-lock"), 2)
    assert message == (
        "ffmpeg is not in [pip] dependencies, but in [conda] dependencies\n  hint: run `envspec remove --conda ffmpeg`"
    )
    succeeded(user.runs("remove", "--conda", "ffmpeg", "--no-lock"))


def test_a_pyproject_that_is_the_spec(index: IndexServer, tmp_path: Path) -> None:
    user = User(tmp_path, index.url)
    text = (
        '[project]\nname = "small"\nrequires-python = "==3.11.*"\ndependencies = [\n    "app",\n]\n'
        '\n[tool.envspec]\ndependencies_from = ["project"]\n[tool.envspec.env]\nplatforms = ["linux-64"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    (tmp_path / "uv.lock").touch()
    ran = succeeded(user.runs("add", "other"))
    assert "uv.lock stays as it is" in ran.stderr
    assert 'pyproject.toml: added "other" to [project] dependencies' in ran.stderr
    edited = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    assert edited == text.replace('"app",\n', '"app",\n    "other",\n')
    assert user.pins() == {"app": "1.0", "leaf": "1.0", "other": "1.0"}
    succeeded(user.runs("add", ".", "--constraint", "leaf<2", "--no-lock"))
    assert '\n[tool.envspec.pip]\nconstraints = ["leaf<2"]\n' in (tmp_path / "pyproject.toml").read_text(
        encoding="utf-8"
    )
    succeeded(user.runs("remove", ".", "other"))
    assert user.pins() == {"app": "1.0", "leaf": "1.0"}


def test_conda_packages_are_locked_too(user: User, tmp_path: Path) -> None:
    old, new = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (2025, 2026))
    rows = [row("python", "3.11.7", "h0_0", built=old), row("tool", "1.0", "h0_0", built=old, depends=["libtool"])]
    rows += [row("libtool", version, "h0_0", built=built) for version, built in (("1.0", old), ("2.0", new))]
    channel = write_channel(tmp_path / "channel", rows).as_uri()
    user.writes(f'{SPEC}\n[conda]\nchannels = ["{channel}"]\ndependencies = ["tool"]\n')
    succeeded(user.runs("lock", NAME))
    assert {"tool", "libtool"} <= conda_pins(user).keys()
    succeeded(user.runs("add", "--conda", "libtool <2"))
    assert conda_pins(user)["libtool"] == "1.0"
    assert user.pins() == {"app": "1.0", "leaf": "2.0"}
    message = refused(user.runs("remove", "--conda", "python"), 2)
    assert message.startswith("python is not in [conda] dependencies")
    ran = succeeded(user.runs("remove", "--conda", "libtool"))
    assert 'removed "libtool <2" from [conda] dependencies' in ran.stderr
    # Without a date in the spec, conda packages stay at the lock's versions.
    assert conda_pins(user)["libtool"] == "1.0"


def conda_pins(user: User) -> dict[str, str]:
    return {each["name"]: each["version"] for each in user.document()["resolution"][0]["conda"]}
