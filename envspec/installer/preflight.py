"""Whether this machine can hold an environment, told before anything is fetched. A GPU is not needed to install."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envspec.errors import UnfitMachine
from envspec.models import CondaPackage, Lock, Platform, Resolution

_CPU_FILE: Final = Path("/proc/cpuinfo")
# Needed to run, not to install: a lock for GPUs is installed on machines without them, in containers above all.
_NOT_ASKED: Final = frozenset({"__cuda", "__cuda_arch"})
# x86-64 psABI, "microarchitecture levels", in the words of /proc/cpuinfo: each level has those before it as well.
_LEVELS: Final = (
    ("x86_64_v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86_64_v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86_64_v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What this machine has.

    virtual: conda's virtual packages, name -> version. cpus: the names that its processor goes by.
    """

    platform: Platform
    glibc: tuple[int, int] | None
    virtual: Mapping[str, str]
    cpus: frozenset[str]


def read_host(
    here: Platform, *, conda: Callable[[], Mapping[str, tuple[str, str]]], cpu_file: Path = _CPU_FILE
) -> HostFacts:
    """This machine. conda: its virtual packages, name -> (version, build); asked once."""
    virtual = conda()
    cpus = {virtual["__archspec"][1]} if "__archspec" in virtual else set()
    if here is Platform.LINUX_64:
        cpus |= x86_levels(_flags(cpu_file))
    return HostFacts(here, _glibc(), {name: version for name, (version, _) in virtual.items()}, frozenset(cpus))


def virtual_packages() -> dict[str, tuple[str, str]]:
    """What rattler finds on this machine; CONDA_OVERRIDE_* are not asked."""
    from rattler import VirtualPackage

    found = (each.into_generic() for each in VirtualPackage.detect())
    return {each.name.normalized: (str(each.version), str(each.build_string)) for each in found}


def resolution_for(lock: Lock, here: Platform, named: Platform | None) -> Resolution:
    """The part of the lock that is for this machine.

    named: the platform that the user asks for.
    Raises:
        UnfitMachine: it is another machine's, or the lock has none for this one.
    """
    there = [resolution.target.platform.value for resolution in lock.resolutions]
    if named is not None and named is not here:
        raise UnfitMachine(
            f"an environment for {named.value} can't be installed on this machine, which is {here.value}",
            hint=f"run it on a machine of {named.value}",
        )
    for resolution in lock.resolutions:
        if resolution.target.platform is here:
            return resolution
    raise UnfitMachine(
        f"{lock.name} is locked for {', '.join(there) or 'no platform'}, and this machine is {here.value}",
        hint=f'add "{here.value}" to [env] platforms and run `envspec lock`',
    )


def check_machine(resolution: Resolution, host: HostFacts) -> None:
    """Refuse what this machine's C library, kernel or processor can't run.

    Raises:
        UnfitMachine: names all of it, and whose it is.
    """
    lacks = [*_lacks_for_wheels(resolution, host), *_lacks_for_conda(resolution.conda, host)]
    if lacks:
        raise UnfitMachine(
            f"this machine can't run the lock: {'; '.join(lacks)}",
            hint="install it on a newer system, or lock for an older one: [cuda] os, or [conda.virtual_packages]",
        )


def x86_levels(flags: frozenset[str]) -> frozenset[str]:
    """The levels of x86-64 that a processor with these flags has."""
    names = ["x86_64"]
    for name, needs in _LEVELS:
        if not needs <= flags:
            break
        names.append(name)
    return frozenset(names)


def _flags(cpu_file: Path) -> frozenset[str]:
    try:
        found = re.search(r"^flags\s*:(.*)$", cpu_file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return frozenset()
    return frozenset(found[1].split()) if found else frozenset()


def _glibc() -> tuple[int, int] | None:
    name, version = platform.libc_ver()
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if name == "glibc" and found else None


def _lacks_for_wheels(resolution: Resolution, host: HostFacts) -> list[str]:
    if not host.platform.is_linux:
        return []
    needs = {f"{each.name} {each.version}": glibc_of(each.file.filename) for each in resolution.packages}
    newest = max((need for need in needs.values() if need), default=None)
    if newest is None or (host.glibc and newest <= host.glibc):
        return []
    whose = sorted(name for name, need in needs.items() if need == newest)
    has = f"it has {_level(host.glibc)}" if host.glibc else "it has another C library"
    return [f"{_few(whose)} need{'s' if len(whose) == 1 else ''} glibc {_level(newest)}, {has}"]


def glibc_of(filename: str) -> tuple[int, int] | None:
    """The oldest glibc that a wheel of this name runs on; None where it needs none or is no wheel."""
    if not filename.endswith(".whl"):
        return None
    levels = []
    for tag in filename.removesuffix(".whl").rpartition("-")[2].split("."):
        if found := re.match(r"manylinux_(\d+)_(\d+)_", tag):
            levels.append((int(found[1]), int(found[2])))
        elif found := re.match(r"manylinux(1|2010|2014)_", tag):
            levels.append({"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}[found[1]])
    return min(levels, default=None)


def _lacks_for_conda(packages: Sequence[CondaPackage], host: HostFacts) -> list[str]:
    asked: dict[str, list[str]] = {}
    for package in packages:
        for depends in package.depends:
            if depends.startswith("__") and depends.split()[0] not in _NOT_ASKED:
                asked.setdefault(depends, []).append(f"{package.name} {package.version}")
    lacks = []
    for depends, whose in sorted(asked.items()):
        missing = _missing(depends, host)
        if missing:
            lacks.append(f"{_few(whose)} need{'s' if len(whose) == 1 else ''} {depends}, {missing}")
    return lacks


def _missing(depends: str, host: HostFacts) -> str | None:
    """What this machine lacks for one virtual package that a row asks for; None where it has it."""
    from rattler import MatchSpec, PackageRecord
    from rattler.package.build_string import BuildString

    spec = MatchSpec(depends)
    name = depends.split(maxsplit=1)[0]
    if name not in host.virtual:
        return "which it has not"
    builds = sorted(host.cpus) if name == "__archspec" else ["0"]
    for build in builds:
        row = PackageRecord(name, host.virtual[name], BuildString(build), 0, host.platform.value)
        if spec.matches(row):
            return None
    return f"it is {', '.join(builds)}" if name == "__archspec" else f"it has {host.virtual[name]}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _level(version: tuple[int, int] | None) -> str:
    return f"{version[0]}.{version[1]}" if version else "none"
