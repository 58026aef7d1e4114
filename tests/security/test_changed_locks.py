"""Every value of a lock, changed by somebody who also writes the checksum, the hashes and the other files anew.

`envspec lock --check` finds all that follows from the spec and the facts. SECURITY.md lists the rest.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envspec import documents
from envspec.errors import EnvspecError
from envspec.facts import Facts, load_facts
from envspec.lockfile.check import StaleCause, StaleReason, check
from envspec.lockfile.document import load
from envspec.lockfile.header import LOCK_FILE
from envspec.operations.lock.recheck import compare_lock
from envspec.operations.lock_state import LockRequest
from envspec.spec import Spec, load_spec
from tests.support.builders import ecosystem
from tests.support.builders.ecosystem import release
from tests.support.changed_locks import Changed, changes_at, field_of, forge_document, places_in, with_change
from tests.support.golden import read_case
from tests.support.golden_locks import play
from tests.support.servers.index import IndexServer
from tests.support.user import ROOT, User, succeeded

GOLDEN: Final = ROOT / "tests" / "operations" / "golden"
NOW: Final = datetime(2026, 12, 1, tzinfo=timezone.utc)
#: Locks with every table: of this repository, and of cases of tests/operations/golden.
COMMITTED: Final = ("llm",)
CASES: Final = (
    "lock_decisions/private-index",
    "lock_decisions/cuda-of-each-platform",
    "lock_decisions/overrides",
    "lock_decisions/override-that-removes",
    "lock_decisions/wheel-by-url",
    "lock_decisions/extension-for-its-torch",
    "lock_decisions/services-and-system-packages",
    "lock_conda_decisions/wheels-on-top",
)


@dataclass(frozen=True)
class Case:
    """A lock with its spec. files: as `envspec lock` wrote them."""

    name: str
    request: LockRequest
    spec: Spec
    facts: Facts
    files: Mapping[str, bytes]
    document: Mapping[str, Any]

    def reasons(self, changed: Changed) -> list[StaleReason]:
        """Why a changed lock is stale."""
        folder = self.request.directory
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        forge_document(folder, changed.document, is_header=changed.path[0] == "files")
        result = check(self.request.spec_path, folder)
        if result.reasons:
            return list(result.reasons)
        try:
            lock = load((folder / LOCK_FILE).read_text(encoding="utf-8"), LOCK_FILE)
        except EnvspecError as error:
            return [StaleReason(StaleCause.DAMAGED, str(error))]
        return list(compare_lock(lock, self.spec, self.facts, self.request))


def case_of(name: str, spec_path: Path, folder: Path) -> Case:
    spec = load_spec(spec_path, NOW)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    document = documents.parse_toml(files[LOCK_FILE].decode())
    return Case(name, LockRequest(spec_path, folder), spec, load_facts(spec.facts.tables()), files, document)


#: What no golden case has: every setting of an image, ages, preferences, packages that are there before.
EVERYTHING: Final = f"""
[env]
name = "small"
python = "3.11.7"
as_of = 2026-06-01T00:00:00Z
package_as_of = {{ left = "7 days ago", right = 2026-06-15 }}
[pip]
dependencies = ["app"]
prefer = ["left==0.9"]
[image]
base = "example.org/base:1@sha256:{"ab" * 32}"
glibc = "2.36"
python = "3.11.7"
workdir = "/work"
env = {{ A = "1" }}
copy = ["src"]
project = "wheel"
[system]
apt = ["curl", "git"]
[services]
ssh = {{ port = 2222 }}
[conformance]
checks = ["device", "matmul"]
"""
UNDATED: Final = """
[env]
name = "small"
python = "3.11.7"
[pip]
dependencies = ["app"]
on_top_of = "installed.txt"
"""
#: What builds have recorded. It follows from nothing that `--verify` resolves.
RECORDED: Final = {
    "system_layer": [
        {
            "platform": "linux-64",
            "base": f"sha256:{'12' * 32}",
            "apt": ["curl", "git", "openssh-server"],
            "packages": ["curl=1", "git=2", "openssh-server=1"],
            "diff_id": f"sha256:{'34' * 32}",
            "digest": f"sha256:{'56' * 32}",
            "size_bytes": 1000,
        }
    ],
    "image_id": [{"platform": "linux-64", "id": f"sha256:{'78' * 32}", "pyc": True}],
}


@pytest.fixture(scope="module")
def index() -> Iterator[IndexServer]:
    with IndexServer([*ecosystem.diamond(), release("left", "0.9"), release("there", "1.0")]) as running:
        yield running


def everything(folder: Path, index: IndexServer) -> Case:
    user = User(folder, index.url)
    user.writes(EVERYTHING)
    (folder / "pyproject.toml").write_text('[project]\nname = "own"\nversion = "1"\n', encoding="utf-8")
    succeeded(user.locks())
    document = {**user.document(), **RECORDED}
    document["image"]["apt"] = sorted(document["image"]["apt"])
    document["system_layer"][0]["apt"] = document["image"]["apt"]
    forge_document(user.lock, document)
    return case_of("everything", user.spec, user.lock)


def undated(folder: Path, index: IndexServer) -> Case:
    """Without a date, and with a package that `--upgrade-package` has moved."""
    user = User(folder, index.url)
    user.writes(UNDATED)
    (folder / "installed.txt").write_text("there==1.0\nleft==1.0.0\n", encoding="utf-8")
    succeeded(user.locks())
    document = user.document()
    later = document["as_of"] + timedelta(days=1)
    forge_document(user.lock, {**document, "package_as_of": [{"name": "app", "as_of": later}]})
    return case_of("undated", user.spec, user.lock)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory, index: IndexServer) -> list[Case]:
    found = [everything(tmp_path_factory.mktemp("all"), index), undated(tmp_path_factory.mktemp("undated"), index)]
    for name in CASES:
        user, ran, _ = play(read_case(GOLDEN / f"{name}.txtar"), tmp_path_factory.mktemp("case"))
        assert ran.status == 0, ran
        found.append(case_of(name, user.spec, user.folder / "locks" / "case"))
    # The largest last: what the others have is tried in them.
    for name in COMMITTED:
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(ROOT / "locks" / name, folder / "locks" / name)
        (folder / "specs").mkdir()
        spec = shutil.copy(ROOT / "specs" / f"{name}.toml", folder / "specs")
        found.append(case_of(name, Path(spec), folder / "locks" / name))
    return found


def test_no_lock_is_refused(cases: list[Case]) -> None:
    for case in cases:
        document = Changed((LOCK_FILE,), "as it is", dict(case.document))
        assert case.reasons(document) == [], case.name


def fields_in(table: str) -> frozenset[str]:
    """The fields of a table of SECURITY.md, under "Checks of locks"."""
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition(f"<!-- fields: {table} -->\n")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    return frozenset(name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1]))


#: Fields, and all below them, in which `--check` does not find every change.
ONLY_VERIFIED: Final = fields_in("verify")
NEITHER: Final = fields_in("neither")
DATES: Final = frozenset({"as_of", "package_as_of", "conda_as_of"})


def covers(stated: str, field: str) -> bool:
    """Whether a field of SECURITY.md means a field of a lock: it and all below it; with `[]`, only whole entries."""
    if stated.endswith("[]"):
        return field == stated
    return field.removesuffix("[]") == stated or field.startswith(f"{stated}.")


def is_stated(field: str, *, is_dated: bool) -> bool:
    """is_dated: whether the spec has a date, from which those of the lock follow."""
    stated = {*ONLY_VERIFIED, *NEITHER} - (DATES if is_dated else frozenset())
    return any(covers(each, field) for each in stated)


def test_every_field(cases: list[Case]) -> None:
    """Each kind of change of each field, in the first lock that has it."""
    tried: set[tuple[str, str, bool]] = set()
    unnoticed: dict[str, list[str]] = {}
    is_expected = True
    for case in cases:
        for place in places_in(case.document):
            for changed in changes_at(case.document, place):
                # Without a date in the spec, its dates are the lock's own. Some packages are the spec's.
                of_package = str(place) if changed.field == "resolution.package[]" else ""
                kind = (changed.field, changed.how + of_package, case.spec.env.is_dated)
                if kind not in tried and not case.reasons(changed):
                    unnoticed.setdefault(changed.field, []).append(f"{case.name}: {changed}")
                    is_expected &= is_stated(changed.field, is_dated=case.spec.env.is_dated)
                tried.add(kind)
    assert is_expected, unnoticed
    # What SECURITY.md lists is not found, or no lock here has it.
    fields = {field for field, _, _ in tried}
    for stated in (*ONLY_VERIFIED, *NEITHER):
        is_here = any(covers(stated, field) for field in fields)
        assert not is_here or any(covers(stated, field) for field in unnoticed), stated


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_field(cases: list[Case], data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(cases))
    place = data.draw(st.sampled_from(list(places_in(case.document))))
    changed = data.draw(st.sampled_from(list(changes_at(case.document, place))))
    assert case.reasons(changed) or is_stated(changed.field, is_dated=case.spec.env.is_dated), f"{case.name}: {changed}"


def test_verify_finds_the_rest(tmp_path: Path, index: IndexServer) -> None:
    """All fields that `--check` leaves to it, changed at once: one by one, `--verify` names them."""
    user = User(tmp_path, index.url)
    user.wants("app", "left==0.9", as_of="2026-06-01T00:00:00Z")
    succeeded(user.locks())
    document = user.document()
    changes = first_changes(document, ONLY_VERIFIED)
    for changed in changes.values():
        document = with_change(document, changed)
    forge_document(user.lock, document)
    found = user.locks("--verify", "--format", "json")
    assert found.status == 3, found
    [lock] = json.loads(found.stdout)["locks"]
    named = {each["what"].removeprefix("resolution.") for each in lock["differences"]}
    fields = {field.removeprefix("resolution.package.").removeprefix("resolution.") for field in changes}
    assert {"facts", "uploaded", "file.sha256", "file.size_bytes", "record_sha256", "rejected"} <= fields
    assert {field for field in fields if not any(what.startswith(field) for what in named)} == set(), named


def first_changes(document: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Changed]:
    """One change of each of these fields that a document has: another value if it has one, else without it."""
    found: dict[str, Changed] = {}
    for place in places_in(document):
        field = field_of(place)
        if field in fields and field not in found and not field.endswith("[]"):
            found[field] = next(iter(changes_at(document, place)))
    return found
