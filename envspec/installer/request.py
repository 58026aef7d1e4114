"""What to install, and whether this machine can run it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from envspec.context import Stages
from envspec.errors import UnfitMachine
from envspec.io.process import local_glibc
from envspec.models import CondaPackage, Lock, Platform, Resolution
from envspec.spec.targets import glibc_of


class InstallStage(Stages):
    """The stages of an installation, in order."""

    WAITING = "waiting for another install into the same folder"
    FETCHING = "fetching archives"
    LINKING = "linking conda packages"
    PYTHON = "preparing Python"
    WHEELS = "installing wheels"
    CHECKING = "checking files"


class InstallRequest(Struct, frozen=True):
    """resolution: the part of `lock` for this machine. lock_sha256: of the bytes of envspec.lock.

    prefix: absolute, links resolved. python: the user's interpreter for a lock without conda.
    """

    lock: Lock
    lock_sha256: str
    resolution: Resolution
    prefix: Path
    python: Path | None = None

    @property
    def platform(self) -> Platform:
        return self.resolution.target.platform


# Needed to run, not to install: locks for GPUs are installed on machines without them, often in containers.
_RUNTIME_ONLY: Final = frozenset({"__cuda", "__cuda_arch"})
# x86-64 psABI, "microarchitecture levels", with the flags of /proc/cpuinfo; each level includes those before it.
_LEVELS: Final = (
    ("x86_64_v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86_64_v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86_64_v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)


class HostFacts(Struct, frozen=True):
    """virtual: conda's virtual packages, name -> version. cpus: names of the processor's microarchitecture levels."""

    platform: Platform
    glibc: tuple[int, int] | None
    virtual: Mapping[str, str]
    cpus: frozenset[str]


def read_host(resolution: Resolution) -> HostFacts:
    """The facts of this machine; conda's for a resolution with its packages. CONDA_OVERRIDE_* are ignored."""
    local = resolution.target.platform
    if not resolution.conda:
        return HostFacts(local, local_glibc(), {}, frozenset())
    from rattler import VirtualPackage

    virtual: dict[str, str] = {}
    cpus: set[str] = set()
    for each in VirtualPackage.detect():
        package = each.into_generic()
        virtual[package.name.normalized] = str(package.version)
        if package.name.normalized == "__archspec":
            cpus.add(str(package.build_string))
    if local is Platform.LINUX_64:
        cpus |= x86_levels(_flags())
    return HostFacts(local, local_glibc(), virtual, frozenset(cpus))


def resolution_for(lock: Lock, local: Platform, requested: Platform | None) -> Resolution:
    """The resolution for this machine. requested: the user's --platform.

    Raises:
        UnfitMachine: `requested` is another platform, or the lock has none for this machine.
    """
    locked = [platform.value for platform in lock.platforms]
    if requested is not None and requested is not local:
        raise UnfitMachine(
            f"an environment for {requested.value} can't be installed on this machine, which is {local.value}",
            hint=f"run it on a {requested.value} machine",
        )
    for resolution in lock.resolutions:
        if resolution.target.platform is local:
            return resolution
    raise UnfitMachine(
        f"{lock.name} is locked for {', '.join(locked) or 'no platform'}, and this machine is {local.value}",
        hint=f'add "{local.value}" to [env] platforms and run `envspec lock`',
    )


def check_machine(resolution: Resolution, host: HostFacts) -> None:
    """Refuse a lock that this machine's C library, kernel or processor can't run.

    Raises:
        UnfitMachine: names all missing requirements and their packages.
    """
    missing = [*_missing_for_wheels(resolution, host), *_missing_for_conda(resolution.conda, host)]
    if missing:
        raise UnfitMachine(
            f"this machine can't run the lock: {'; '.join(missing)}",
            hint="install it on a newer system, or lock for an older one: [cuda] os, or [conda.virtual_packages]",
        )


def x86_levels(flags: frozenset[str]) -> frozenset[str]:
    """The x86-64 levels of a processor with these flags."""
    names = ["x86_64"]
    for name, needs in _LEVELS:
        if not needs <= flags:
            break
        names.append(name)
    return frozenset(names)


def _flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def _missing_for_wheels(resolution: Resolution, host: HostFacts) -> list[str]:
    if not host.platform.is_linux:
        return []
    needs = {f"{each.name} {each.version}": glibc_of(each.file.filename) for each in resolution.packages}
    newest = max((need for need in needs.values() if need), default=None)
    if newest is None or (host.glibc and newest <= host.glibc):
        return []
    whose = sorted(name for name, need in needs.items() if need == newest)
    has = "it has {}.{}".format(*host.glibc) if host.glibc else "it has another C library"
    return [f"{_need(whose)} glibc {newest[0]}.{newest[1]}, {has}"]


def _missing_for_conda(packages: Sequence[CondaPackage], host: HostFacts) -> list[str]:
    required: dict[str, list[str]] = {}
    for package in packages:
        for depends in package.depends:
            if depends.startswith("__") and depends.split()[0] not in _RUNTIME_ONLY:
                required.setdefault(depends, []).append(f"{package.name} {package.version}")
    problems = []
    for depends, whose in sorted(required.items()):
        problem = _missing(depends, host)
        if problem:
            problems.append(f"{_need(whose)} {depends}, {problem}")
    return problems


def _missing(depends: str, host: HostFacts) -> str | None:
    """Why this machine does not satisfy a dependency on a virtual package; None if it does."""
    from rattler import MatchSpec, PackageRecord
    from rattler.package.build_string import BuildString

    spec = MatchSpec(depends)
    name = depends.split(maxsplit=1)[0]
    if name not in host.virtual:
        return "which it does not have"
    builds, problem = ["0"], f"it has {host.virtual[name]}"
    if name == "__archspec":
        builds = sorted(host.cpus)
        problem = f"it is {', '.join(builds)}"
    for build in builds:
        record = PackageRecord(name, host.virtual[name], BuildString(build), 0, host.platform.value)
        if spec.matches(record):
            return None
    return problem


def _need(names: Sequence[str]) -> str:
    """`a 1.0 needs`, `a 1.0, b 2.0 need`, with at most three names."""
    if len(names) == 1:
        return f"{names[0]} needs"
    if len(names) <= 3:
        return f"{', '.join(names)} need"
    return f"{', '.join(names[:2])} and {len(names) - 2} more need"
