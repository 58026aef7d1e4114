"""conda-<platform>.lock and conda-lock.yml, and how conda, conda-lock and rattler read them."""

from __future__ import annotations

import json
import re
import string
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conda_lock.conda_solver import solve_conda  # type: ignore[import-untyped]
from conda_lock.interfaces.vendored_conda import MatchSpec  # type: ignore[import-untyped]
from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file  # type: ignore[import-untyped]
from conda_lock.lockfile.v1.models import Lockfile as Version1  # type: ignore[import-untyped]
from conda_lock.lockfile.v2prelim.models import LockedDependency, Lockfile, LockMeta  # type: ignore[import-untyped]
from conda_lock.models.channel import Channel  # type: ignore[import-untyped]
from conda_lock.models.lock_spec import VersionedDependency  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from rattler.explicit_environment import ExplicitEnvironmentSpec

from envspec.lockfile.export.conda import conda_lock_files, dependencies, explicit_files, in_link_order, without_md5
from envspec.models import CondaPackage, Lock
from tests.support.builders.locks import CONDA_FORGE, X86, conda, conda_resolution, example, lock, on_conda

#: Answers the requests of `conda-lock lock` to conda: the records of the requested platform.
CONDA = """#!{python}
import json, os, pathlib
rows = json.loads(pathlib.Path({rows!r}).read_text())[os.environ["CONDA_SUBDIR"]]
print(json.dumps({{"actions": {{"FETCH": rows, "LINK": rows}}}}))
"""


def text(made: Lock) -> str:
    return conda_lock_files(made)["conda-lock.yml"]


def whole(made: Lock) -> Any:
    return yaml.safe_load(text(made))


def row(package: CondaPackage) -> dict[str, object]:
    """A row as conda tells it to conda-lock."""
    return {
        "name": package.name,
        "version": package.version,
        "url": package.url,
        "md5": package.md5,
        "sha256": package.sha256,
        "depends": list(package.depends),
    }


def locked_by_conda_lock(made: Lock, folder: Path) -> Any:
    """What conda-lock writes when conda solves to the rows of this lock."""
    rows = {item.target.platform.value: list(map(row, item.conda)) for item in made.resolutions}
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    executable = folder / "conda"
    executable.write_text(CONDA.format(python=sys.executable, rows=str(folder / "rows.json")), encoding="utf-8")
    executable.chmod(0o755)
    channels = [Channel.from_string(channel.url) for channel in made.channels]
    found: list[LockedDependency] = []
    for item in made.resolutions:
        # Every package is requested, so that each is in the category that is always installed.
        asked = {each.name: VersionedDependency(name=each.name, version="") for each in item.conda}
        platform = item.target.platform.value
        found += solve_conda(executable, asked, {}, [], platform, channels, mapping_url="").values()
    platforms = [item.target.platform.value for item in made.resolutions]
    meta = LockMeta(
        content_hash=dict.fromkeys(platforms, made.input_sha256), channels=channels, platforms=platforms, sources=[]
    )
    write_conda_lock_file(Lockfile(package=found, metadata=meta), folder / "theirs.yml", None)
    return yaml.safe_load((folder / "theirs.yml").read_text(encoding="utf-8"))


def test_it_is_what_conda_lock_writes_of_the_same_rows(tmp_path: Path) -> None:
    """Down to the order of the keys."""
    assert json.dumps(whole(on_conda())) == json.dumps(locked_by_conda_lock(on_conda(), tmp_path))


def test_conda_lock_reads_it(tmp_path: Path) -> None:
    data = whole(on_conda())
    assert json.loads(json.dumps(Version1.model_validate(data).dict_for_output())) == data
    path = tmp_path / "conda-lock.yml"
    path.write_text(text(on_conda()), encoding="utf-8")
    read = parse_conda_lock_file(path)
    assert {(item.name, item.platform) for item in read.package} == {
        (package.name, item.target.platform.value) for item in on_conda().resolutions for package in item.conda
    }
    assert {tuple(item.categories) for item in read.package} == {("main",)}


def test_odd_texts_come_through_as_they_are() -> None:
    odd = 'a "quote", a \\ , a\ttab, a\x7f, a\x85, a\u2028, a\ufeff, ä, 漢, 🐍, null: {yes}'
    made = lock(
        conda_resolution(X86, [conda("python", "3.12.11", depends=(f"{odd} >=1",)), conda("on", odd)]),
        channels=(CONDA_FORGE,),
    )
    data = whole(made)
    assert [item["name"] for item in data["package"]] == ["on", "python"]
    assert data["package"][0]["version"] == odd
    assert list(data["package"][1]["dependencies"]) == list(dependencies([f"{odd} >=1"]))


def test_rows_without_md5_give_no_file_and_a_reason() -> None:
    names = ("python", "aa", "bb", "cc", "dd")
    made = lock(conda_resolution(X86, [conda(name, "1.0", md5=None) for name in names]), channels=(CONDA_FORGE,))
    assert conda_lock_files(made) == {}
    assert without_md5(made) == (
        "no conda-lock.yml is written: its format requires an MD5, and the channel has none of aa, bb, cc and "
        "2 more; install from conda-PLATFORM.lock, or by envspec"
    )


def test_a_url_that_looks_like_a_variable_is_left_alone() -> None:
    """conda and conda-lock replace environment variables in URLs."""
    row = conda("python", "3.12.11", url="https://conda.example.org/$HOME/linux-64/python-3.12.11-h0_0.conda")
    made = lock(conda_resolution(X86, [row]), channels=(CONDA_FORGE,))
    for written in (text(made), explicit_files(made)["conda-linux-64.lock"]):
        assert "https://conda.example.org/%24HOME/linux-64/" in written


def test_a_lock_without_conda_has_neither_file_nor_reason() -> None:
    assert conda_lock_files(example()) == {}
    assert without_md5(example()) is None


def by_conda_lock(depends: list[str]) -> dict[str, str]:
    """The steps of conda_lock.conda_solver.solve_conda."""
    found: dict[str, list[Any]] = {}
    for each in depends:
        spec = MatchSpec(each)
        found.setdefault(spec.name, []).append(spec)
    merged = {name: each[0] if len(each) == 1 else MatchSpec.merge(each)[0] for name, each in found.items()}
    return {name: "" if each.version is None else each.version.spec_str for name, each in sorted(merged.items())}


#: Dependencies of packages as channels write them, separated by semicolons; those of one package are joined by `+`.
DEPENDS = """
a ; a * ; a 1.2 ; a 1.2.* ; a 1.2 build_0 ; a >=1,<2 py* ; a * *_cp312 ; a !=1.2.* ; a ~=1.2 ; a 1!2.0 ; a>=1
a[version='>=1,<2'] ; a[build=x] ; conda-forge::a >=1 ; A_b >=1 ; a 1.2|1.3,<2 ; a >=1.0  # a word
__glibc >=2.17,<3.0.a0 + __glibc >=2.17 ; _openmp_mutex >=4.5 + _openmp_mutex * *_llvm
libgcc >=13 + libgcc >=13 ; python + python 3.14.* *_cp314 ; n <2.3 + n >=1.19,<3 + n >=1.23.5
"""


@pytest.mark.parametrize("depends", [each.strip() for each in re.split(" ; |\n", DEPENDS.strip())])
def test_dependencies_are_conda_locks(depends: str) -> None:
    each = depends.split(" + ")
    assert dependencies(each) == by_conda_lock(each)


#: How the draft conda/ceps#79 and conda itself read a line, from 24.9 on.
LINE = re.compile(
    r"(?:(?P<url_p>.+)(?:[/\\]))?(?P<fn>[^/\\#]+(?:\.tar\.bz2|\.conda))"
    r"(?:#((?P<md5>[0-9a-f]{32})|((sha256:)?(?P<sha256>[0-9a-f]{64}))))?$"
)


def order_of(*packages: CondaPackage) -> list[str]:
    return [package.name for package in in_link_order(packages)]


def test_virtual_packages_and_what_is_not_locked_do_not_matter() -> None:
    assert order_of(conda("a", "1", depends=("__glibc >=2.17", "gone", "a"))) == ["a"]


NAMES = st.sampled_from(string.ascii_lowercase[:8])
ROWS = st.dictionaries(NAMES, st.tuples(st.lists(NAMES, max_size=4), st.booleans()), max_size=8)


@given(ROWS, st.booleans())
def test_an_order_that_holds_wherever_there_is_one(graph: dict[str, tuple[list[str], bool]], has_python: bool) -> None:
    rows = [
        conda(name, "1", depends=tuple(needs), **({"noarch": "python"} if is_pure else {}))
        for name, (needs, is_pure) in graph.items()
    ]
    if has_python:
        rows.append(conda("python", "3.12", depends=("a", "b")))
    order = order_of(*rows)
    assert sorted(order) == sorted(row.name for row in rows)
    needs = {
        row.name: set(dependencies(row.depends)) | ({"python"} if row.noarch and has_python else set()) for row in rows
    }
    pure = {row.name for row in rows if row.noarch}
    for row in rows:
        for need in needs[row.name] & set(order) - {row.name}:
            if row.name not in reached(need, needs):
                assert order.index(need) < order.index(row.name)
    if has_python:
        assert all(order.index("python") < order.index(name) for name in pure)


def reached(name: str, needs: dict[str, set[str]]) -> set[str]:
    """Everything that `name` needs, itself included."""
    found, waiting = set[str](), [name]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += needs.get(one, ())
    return found


def test_rattler_reads_every_line_and_the_platform() -> None:
    read = ExplicitEnvironmentSpec.from_str(explicit_files(on_conda())["conda-linux-64.lock"])
    assert str(read.platform) == "linux-64"
    assert {entry.url for entry in read.packages} == {
        f"{package.url}#sha256:{package.sha256}" for package in on_conda().resolutions[0].conda
    }


def test_conda_reads_every_hash() -> None:
    lines = [
        line for line in explicit_files(on_conda())["conda-linux-aarch64.lock"].splitlines() if line[0] not in "#@"
    ]
    read = [LINE.match(line) for line in lines]
    assert {(found["fn"], found["sha256"]) for found in read if found} == {
        (package.filename, package.sha256) for package in on_conda().resolutions[1].conda
    }
