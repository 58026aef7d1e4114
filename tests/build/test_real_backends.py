"""Real sdists, each with another backend, built twice; and one that is locked without a build. They and their backends
come from the package index.
"""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from envspec.build.reproducible import is_pure
from envspec.context import Context, ReporterOf
from envspec.diagnostics.machine import this_platform
from envspec.lockfile.document import load
from envspec.lockfile.header import LOCK_FILE
from envspec.models import (
    DEFAULT_INDEX,
    BuiltWheel,
    Dependent,
    Package,
    Python,
    Resolution,
    Target,
    Unbuilt,
    WheelFile,
)
from envspec.operations.build_wheels import Builds
from envspec.operations.lock.stages import compile_lock
from envspec.operations.lock_state import LockRequest
from envspec.operations.session import Session
from tests.support.builders import locks
from tests.support.builders.environments import RUNNING
from tests.support.machines.confinement import confined

pytestmark = confined

#: File and SHA-256 as the index has them, and what builds it.
SDISTS = {
    "docopt-0.6.2.tar.gz": ("49b3a825280bd66b3aa83585ef59c4a8c82f2c8a522dbe754a8bc8d08c85c491", "setup.py alone"),
    "zipp-3.20.2.tar.gz": ("bc9eb26f4506fda01b81bcde0ca78103b6e62f991b381fec825435c836edbc29", "setuptools, its scm"),
    "tomli-2.0.1.tar.gz": ("de526c12914f0c550d15924c62d72abc48d6fe7364aa87328337a31007fe8a4f", "flit"),
    "termcolor-2.4.0.tar.gz": (
        "aab9e56047c8ac41ed798fa36d892a37aca6b3e9159f3e0c24bc64a9b3ac7b7a",
        "hatchling, its vcs",
    ),
    "tomlkit-0.13.2.tar.gz": ("fff5fe59a87295b278abd31bec92c15d9bc4a06885ab12bcea52c71119392e79", "poetry"),
}


async def built(package: Package, cache: Path) -> tuple[BuiltWheel, bytes]:
    """The package's wheel as it is recorded, and its bytes."""
    part = Resolution(Target(this_platform(), Python(RUNNING, "system"), glibc=(2, 28)), (package,))
    lock = locks.lock(part, as_of=datetime(2026, 6, 1, tzinfo=timezone.utc))
    context = Context(os.environ, Path.home(), cache, reporter=ReporterOf(warning=print))
    async with Session(context) as session:
        found = (await Builds(lock, session).record(this_platform())).resolutions[0].packages[0].built
    assert found is not None
    return found, (cache / "archives" / found.sha256 / found.filename).read_bytes()


@pytest.mark.network
@pytest.mark.parametrize(("filename", "sha256"), [(name, row[0]) for name, row in SDISTS.items()], ids=list(SDISTS))
def test_it_gives_the_same_bytes_twice(tmp_path: Path, filename: str, sha256: str) -> None:
    name, _, version = filename.removesuffix(".tar.gz").rpartition("-")
    package = Package(name, version, WheelFile(DEFAULT_INDEX, filename, sha256, None), (Dependent("spec", name),))
    first, again = (asyncio.run(built(package, tmp_path / each)) for each in ("a", "b"))
    assert is_pure(first[0].filename)
    assert first == again


@pytest.mark.network
def test_hydra_core_is_locked_where_nothing_confines_builds(tmp_path: Path) -> None:
    """It requires antlr4-python3-runtime 4.9, which has no wheel."""
    spec = tmp_path / "spec.toml"
    spec.write_text(
        '[env]\nname = "small"\npython = "3.12"\nplatforms = ["linux-64"]\nas_of = 2026-11-20T00:00:00Z\n'
        '[pip]\ndependencies = ["hydra-core"]\n'
    )
    environ = {**os.environ, "PATH": str(tmp_path)}
    context = Context(environ, Path.home(), tmp_path / "cache", reporter=ReporterOf(warning=print))
    made = compile_lock(LockRequest(spec, tmp_path / "lock"), None, context, None, None)
    [part] = load(made.files[LOCK_FILE].decode(), LOCK_FILE).resolutions
    unbuilt = {each.name: each.unbuilt for each in part.packages if each.unbuilt}
    assert unbuilt == {"antlr4-python3-runtime": Unbuilt.STATED}
