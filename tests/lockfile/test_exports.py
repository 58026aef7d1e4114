"""Every folder of tests/lockfile/golden_exports (see the README there), and what its readers require of each format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final, cast

import pytest
import yaml
from packaging.markers import Environment, Marker
from packaging.pylock import Pylock
from rattler import MatchSpec, PackageRecord
from rattler.package.build_string import BuildString

from envspec import documents
from envspec.errors import UsageError
from envspec.lockfile.document import canonical, load
from envspec.lockfile.export import devcontainer
from envspec.lockfile.export.types import Exported, ExportRequest, Location, is_project, project_of
from envspec.lockfile.folder import read_lock
from envspec.models import (
    DIRECT_URL,
    GIT,
    LOCAL,
    SPEC,
    BuiltWheel,
    Dependent,
    InstalledPackage,
    Lock,
    OnTopOf,
    Package,
    Platform,
    Python,
    WheelFile,
)
from envspec.operations.export import FORMATS
from envspec.operations.lock.complete import container_config
from envspec.spec.targets import marker_environment, wheel_tags
from envspec.structs import replace
from tests.support.builders.locks import X86, example, lock, package, resolution, sha256
from tests.support.golden import assert_golden
from tests.support.user import ROOT

HERE: Final = Path(__file__).parent
CASES: Final = sorted(path for path in (HERE / "golden_exports").iterdir() if path.is_dir())
#: Usual name of a format's file, without the lock's, and its renderer.
RENDERERS: Final[Mapping[str, Callable[[ExportRequest], Exported]]] = {
    each.name.replace(".{name}", ""): resolve_name(f"envspec.lockfile.export.{each.renderer}")
    for each in FORMATS.values()
}
FILES: Final = [path for case in CASES for path in sorted(case.iterdir())]


def lock_of(case: str) -> Lock:
    return load((HERE / "golden" / case / "envspec.lock").read_text(encoding="utf-8"), case)


def request(lock: Lock, *, only: Platform | None = None) -> ExportRequest:
    lock = canonical(lock)
    resolutions = [each for each in lock.resolutions if only in (None, each.target.platform)]
    packages = [package for each in resolutions for package in each.packages]
    return ExportRequest(
        lock,
        resolutions,
        locations={
            each.file.sha256: Location(
                f"https://files.example.org/{each.file.filename}", "https://index.example.org/simple/"
            )
            for each in packages
            if each.file.index != DIRECT_URL
        },
        image=f"registry.example.com/team/{lock.name}:1",
        container=container_config(lock),
        projects={name: f"../projects/{name}" for name in map(project_of, filter(is_project, packages))},
    )


def with_image(lock: Lock) -> Lock:
    """The lock with a base image, and with a Python that an image can have."""
    parts = [
        replace(part, target=replace(part.target, python=Python("3.11.14", "system"))) for part in lock.resolutions
    ]
    return replace(lock, resolutions=tuple(parts), base_image=example().base_image)


def exported(lock: Lock, name: str) -> Exported:
    if name == "Dockerfile" and not lock.base_images:
        lock = with_image(lock)
    return RENDERERS[name](request(lock, only=Platform.LINUX_64 if name == "environment.yml" else None))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_case(path: Path) -> None:
    assert_golden(exported(lock_of(path.parent.name), path.name).text, path)


def test_there_are_cases_of_every_format() -> None:
    assert {path.name for path in FILES} == set(RENDERERS)


def built(name: str, index: str, filename: str, url: str | None, **others: Any) -> Package:
    file = WheelFile(index, filename, sha256(filename), 1000, url)
    return replace(package(name, "1.0", file=file), **others)


COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
#: What is not a wheel of an index.
SOURCES: Final = lock(
    resolution(
        X86,
        built(
            "from-git",
            GIT,
            "from_git-1.0-py3-none-any.whl",
            f"git+https://git.example.org/p.git@{COMMIT}#subdirectory=in",
        ),
        built("from-here", LOCAL, "from_here-1.0-py3-none-any.whl", f"../here#sha256={'0' * 64}"),
        built(
            "from-sdist",
            "default",
            "from_sdist-1.0.tar.gz",
            None,
            built=BuiltWheel("from_sdist-1.0-py3-none-any.whl", "1" * 64, 9),
        ),
        built("from-url", DIRECT_URL, "from_url-1.0.zip", "https://user:hunter2@example.org/from url/from_url-1.0.zip"),
        built("plain", "default", "plain-1.0-py3-none-any.whl", None),
    )
)
ALL_LOCKS: Final = {
    **{case.name: lock_of(case.name) for case in CASES},
    "dev-3.12": read_lock(ROOT / "locks" / "dev-3.12"),
    "sources": SOURCES,
}


@pytest.mark.parametrize("name", ["two-platforms", "cuda-of-each-platform", "image-with-its-id", "sources", "dev-3.12"])
def test_an_installer_selects_the_locked_file_of_each_package_by_pylock(name: str) -> None:
    locked = ALL_LOCKS[name]
    read = Pylock.from_dict(documents.parse_toml(exported(locked, "pylock.toml").text))
    for each in locked.resolutions:
        selected = read.select(
            environment=cast("Environment", marker_environment(each.target)), tags=wheel_tags(each.target)
        )
        found = {one.name: getattr(file, "hashes", None) for one, file in selected}
        hashes = {one.name: None if is_project(one) else {"sha256": one.file.sha256} for one in each.packages}
        assert found == hashes


@pytest.mark.parametrize("name", ["two-platforms", "cuda-of-each-platform", "dev-3.12"])
def test_pylock_has_the_dependencies_of_each_entry(name: str) -> None:
    """Each names one entry, and on each platform they are what the lock has."""
    locked = ALL_LOCKS[name]
    packages = documents.parse_toml(exported(locked, "pylock.toml").text)["packages"]
    for each in locked.resolutions:
        environment = marker_environment(each.target)
        here = [one for one in packages if "marker" not in one or Marker(one["marker"]).evaluate(environment)]
        found = set()
        for entry in here:
            for dependency in entry.get("dependencies", ()):
                (match,) = (one for one in packages if dependency.items() <= one.items())
                found |= {(entry["name"], match["name"])} if match in here else set()
        required = {(by.name, one.name) for one in each.packages for by in one.required_by if by.name != SPEC}
        assert found == required


def test_pylock_names_sources_as_they_are() -> None:
    made = exported(SOURCES, "pylock.toml")
    entries = {each["name"]: each for each in documents.parse_toml(made.text)["packages"]}
    assert entries["from-git"]["vcs"] == {
        "type": "git",
        "url": "https://git.example.org/p.git",
        "commit-id": COMMIT,
        "subdirectory": "in",
    }
    assert entries["from-here"]["directory"] == {"path": "../projects/../here"}
    assert not {"version"} & {*entries["from-git"], *entries["from-here"]}
    assert entries["from-sdist"]["sdist"]["hashes"] == {"sha256": sha256("from_sdist-1.0.tar.gz")}
    assert entries["from-sdist"]["tool"]["envspec"]["built-wheels"][0]["hashes"] == {"sha256": "1" * 64}
    assert entries["from-url"]["archive"]["url"] == "https://example.org/from%20url/from_url-1.0.zip"
    assert "wheels that envspec builds: from-git 1.0, from-here 1.0, from-sdist 1.0, from-url 1.0" in made.text
    assert "#   pip install" not in made.text and "#   uv pip sync FILE\n" in made.text
    assert made.missing == [each for each in made.missing if f"#   {each}\n" in made.text]


def test_a_wheel_of_another_release_is_none_of_pylock() -> None:
    odd = built("plain", "default", "plain-2.0-py3-none-any.whl", None)
    with pytest.raises(UsageError, match=r"pylock: .*plain-2.0-py3-none-any.whl"):
        exported(lock(resolution(X86, odd)), "pylock.toml")


def test_environment_yml_and_pixi_name_sources_too() -> None:
    lines = yaml.safe_load(exported(SOURCES, "environment.yml").text)["dependencies"][-1]["pip"]
    assert lines == [
        f"from-git @ git+https://git.example.org/p.git@{COMMIT}#subdirectory=in",
        "../projects/../here",
        "from-sdist==1.0",
        "from-url @ https://example.org/from%20url/from_url-1.0.zip",
        "plain==1.0",
    ]
    table = documents.parse_toml(exported(SOURCES, "pixi.toml").text)["pypi-dependencies"]
    assert table["from-git"] == {"git": "https://git.example.org/p.git", "rev": COMMIT, "subdirectory": "in"}
    assert table["from-here"] == {"path": "../projects/../here"}
    assert table["from-url"] == {"url": lines[3].partition(" @ ")[2]}
    assert table["plain"] == "==1.0"


@pytest.mark.parametrize("name", RENDERERS)
def test_no_file_has_a_password(name: str) -> None:
    assert "hunter2" not in exported(SOURCES, name).text


@pytest.mark.parametrize("name", [name for name, each in ALL_LOCKS.items() if each.resolutions[0].conda])
def test_match_specs_match_the_locked_builds_only(name: str) -> None:
    locked = ALL_LOCKS[name]
    lines = yaml.safe_load(exported(locked, "environment.yml").text)["dependencies"]
    specs = {each.partition("::")[2] or each for each in lines if isinstance(each, str)} - {"pip"}
    (part,) = (each for each in locked.resolutions if each.target.platform is Platform.LINUX_64)
    table = documents.parse_toml(exported(locked, "pixi.toml").text)
    pinned = {**table.get("dependencies", {}), **table.get("target", {}).get("linux-64", {}).get("dependencies", {})}
    assert len(specs) == len(part.conda) == len(pinned)
    for each in part.conda:
        own = MatchSpec(f"{each.name} {pinned[each.name]['version']} {pinned[each.name]['build']}")
        (line,) = (spec for spec in specs if spec.split("=")[0] == each.name)
        for spec in (own, MatchSpec(line)):
            assert spec.matches(record(each.name, each.version, each.build))
            assert not spec.matches(record(each.name, f"{each.version}.1", each.build))
            assert not spec.matches(record(each.name, each.version, f"{each.build}1"))


def record(name: str, version: str, build: str) -> PackageRecord:
    return PackageRecord(name, version, BuildString(build), 0, "linux-64")


def test_an_override_is_one_of_pixi_and_pip_is_said_to_refuse_it() -> None:
    by = Dependent("other", "plain", replaces="plain<1")
    overridden = lock(resolution(X86, replace(package("plain", "1.0"), required_by=(by,)), package("other", "2.0")))
    table = documents.parse_toml(exported(overridden, "pixi.toml").text)
    assert table["pypi-options"]["dependency-overrides"] == {"plain": "==1.0"}
    assert any("overrides" in each for each in exported(overridden, "environment.yml").missing)
    assert "pip install --no-deps -r FILE" in exported(overridden, "pylock.toml").text


#: Key of devcontainer.json -> what its value is. Source: devContainer.base.schema.json in devcontainers/spec on GitHub,
#: `imageContainer`, `nonComposeBase` and `devContainerCommon`. Read 2026-11.
DEVCONTAINER: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": lambda value: isinstance(value, str),
    "image": lambda value: isinstance(value, str),
    "hostRequirements": lambda value: value == {"gpu": True},
    "runArgs": lambda value: all(isinstance(each, str) for each in value),
    "workspaceMount": lambda value: isinstance(value, str),
    "workspaceFolder": lambda value: isinstance(value, str),
    "remoteUser": lambda value: isinstance(value, str),
    "overrideCommand": lambda value: isinstance(value, bool),
    "forwardPorts": lambda value: all(isinstance(each, int) and 0 <= each <= 65535 for each in value),
    "customizations": lambda value: isinstance(value, dict),
}


@pytest.mark.parametrize(
    "case", ["two-platforms", "services", "cuda-of-each-platform", "image-on-conda", "conda-alone"]
)
def test_devcontainer_json_has_the_keys_of_its_schema(case: str) -> None:
    document = json.loads(re.sub(r"(?m)^//.*$", "", exported(lock_of(case), "devcontainer.json").text))
    assert "image" in document
    # Both or none: the specification's reference of workspaceMount.
    assert ("workspaceMount" in document) == ("workspaceFolder" in document)
    for key, value in document.items():
        assert DEVCONTAINER[key](value), key
    assert ("hostRequirements" in document) == ("--gpus" in document["runArgs"]) == lock_of(case).is_for_gpus


def test_a_folder_that_would_mount_another_is_refused() -> None:
    hostile = lock_of("services")
    for folder in ("/work,source=/", "/work/${localEnv:HOME}"):
        changed = replace(hostile, image=replace(hostile.image, workdir=folder))
        with pytest.raises(UsageError, match="can't be mounted"):
            exported(changed, "devcontainer.json")


def test_an_image_by_digest_is_the_locked_one() -> None:
    named = replace(request(lock_of("two-platforms")), image=f"registry.example.com/a@sha256:{'0' * 64}")
    assert not any("digest" in each for each in devcontainer.text(named).missing)


def test_on_top_of_conda_no_installer_removes_or_adds_packages_by_pylock() -> None:
    text = exported(ALL_LOCKS["conda-and-wheels"], "pylock.toml").text
    assert "# To install it on top of conda-linux-64.lock or conda-linux-aarch64.lock:\n" in text
    assert "#   pip install --no-deps -r FILE " in text
    assert "uv pip sync" not in text
    assert "conda packages, on which the wheels depend\n" in text


@pytest.mark.parametrize("name", [name for name in RENDERERS if name not in ("devcontainer.json", "Dockerfile")])
def test_what_is_there_before_the_lock_is_named(name: str) -> None:
    torch = InstalledPackage("torch", "2.9")
    plain = resolution(X86, package("plain", "1.0"))
    base = replace(plain, on_top_of=OnTopOf("nvcr.example/pytorch:25.09", site="/usr/lib/s"), installed=(torch,))
    made = exported(lock(base), name)
    assert "1 package of nvcr.example/pytorch:25.09, on top of which the lock is" in made.missing
    if name == "pylock.toml":
        assert "# To install it on top of nvcr.example/pytorch:25.09:\n#   pip install --no-deps -r FILE" in made.text
        assert "sync" not in made.text
