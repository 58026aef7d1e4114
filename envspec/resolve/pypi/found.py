"""What is installed before the lock's packages: lists of pip, and what resolvers are shown of it. Pure.

Sources: pip's documentation of `pip inspect`, `pip list --format json` and `pip freeze`; PyPA, "Core metadata".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from packaging.version import Version

from envspec import documents
from envspec.facts.tables import numeric, pep440
from envspec.models import CudaVersion, GpuCodeFound
from envspec.names import NAME, VERSION, normalised
from envspec.reasons import Reason, reason
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES
from envspec.resolve.pypi.index.selection import version_of
from envspec.resolve.pypi.metadata import (
    applicable,
    declared,
    metadata_file,
    parsed,
    without_marker,
    without_requirements,
)
from envspec.resolve.pypi.types import Bound
from envspec.resolve.types import FoundEnvironment, FoundPackage
from envspec.structs import replace

#: In bytes; a report of `pip inspect` of 1,000 packages has 10 million.
MOST_BYTES: Final = 64 << 20
_MOST_PACKAGES: Final = 20_000
_PIN: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*={2,3}\s*([^\s;#]+)")
_AT: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*@\s*(\S+)")
#: Packages of NVIDIA whose version begins with CUDA's.
_RUNTIME: Final = re.compile(r"nvidia-cuda-runtime(-cu\d+)?|cuda-toolkit")
_LABEL: Final = re.compile(r"cu\d{2,3}")


class BadList(ValueError):
    """A file that lists no packages."""


def read_list(body: bytes, place: str) -> FoundEnvironment:
    """The packages in the output of `pip inspect`, `pip list --format json` or `pip freeze`. place: the file.

    Raises:
        BadList: it is none of these.
    """
    if len(body) > MOST_BYTES:
        raise BadList(f"it has {len(body)} bytes, at most {MOST_BYTES} are read")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadList(f"it is not UTF-8 at byte {error.start}") from None
    notes: list[str] = []
    if text.lstrip()[:1] in ("[", "{"):
        try:
            data = documents.parse_json(text.encode())
        except ValueError as error:
            raise BadList(f"it is not JSON: {error}") from None
        packages, python = _of_json(data, place, notes), _python(data)
    else:
        packages, python = _of_freeze(text, place, notes), ""
    if not packages:
        raise BadList("it lists no package with a version")
    if len(packages) > _MOST_PACKAGES:
        raise BadList(f"it lists more than {_MOST_PACKAGES} packages")
    found = {each.name: each for each in packages}
    return FoundEnvironment(place, found, python, torch_build=torch_build(found, None, None), notes=tuple(notes))


def _of_json(data: Any, place: str, notes: list[str]) -> list[FoundPackage]:
    rows = data.get("installed") if isinstance(data, Mapping) else data
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise BadList("it is neither the report of `pip inspect` nor that of `pip list --format json`")
    packages: list[FoundPackage] = []
    for row in rows:
        fields = row.get("metadata", row)
        if not isinstance(fields, Mapping):
            raise BadList("a package in it has no metadata")
        name, version = str(fields.get("name", "")), str(fields.get("version", ""))
        lists = (("Requires-Dist", "requires_dist"), ("Provides-Extra", "provides_extra"))
        lines: list[tuple[str, str]] = []
        for field, key in lists:
            for value in filter(str.isprintable, map(str, _texts(fields.get(key)))):
                lines.append((field, value))
        # `pip list` gives names and versions alone.
        packages += _package(name, version, place, notes, None if fields is row else lines)
    return packages


def _texts(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _python(data: Any) -> str:
    if not isinstance(data, Mapping):
        return ""
    environment = data.get("environment")
    version = environment.get("python_full_version") if isinstance(environment, Mapping) else None
    if not isinstance(version, str) or not re.fullmatch(r"3\.\d{1,3}\.\d{1,3}", version):
        return ""
    return version


def _of_freeze(text: str, place: str, notes: list[str]) -> list[FoundPackage]:
    packages: list[FoundPackage] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if pin := _PIN.match(bare):
            packages += _package(pin[1], pin[2], place, notes, None)
        elif (at := _AT.match(bare)) and (version := _version_of_file(at[2])):
            packages += _package(at[1], version, place, notes, None)
        else:
            notes.append(
                f"{place}:{number}: the version in {bare[:100]!r} is unknown: the package counts as not installed"
            )
    return packages


def _version_of_file(url: str) -> str:
    """The version in the name of a wheel or an sdist at a URL; empty if it is none."""
    filename = unquote(re.split(r"[?#]", url, maxsplit=1)[0].rpartition("/")[2])
    if not filename.endswith((".whl", *SDIST_SUFFIXES)):
        return ""
    return str(version_of(filename) or "")


def _package(
    name: str, version: str, place: str, notes: list[str], fields: Iterable[tuple[str, str]] | None
) -> Iterator[FoundPackage]:
    if (found := identified(name, version)) is None:
        shown = normalised(name.strip())[:100]
        notes.append(f"{place}: {shown!r} has no version that PEP 440 can read: it counts as not installed")
        return
    yield FoundPackage(*found, place, None if fields is None else metadata_file(*found, fields))


def identified(name: str, version: str) -> tuple[str, str] | None:
    """A package's name and version in the forms that a lock has; None if one of them has no such form."""
    name, read = normalised(name.strip()), pep440(version)
    if read is None or not NAME.fits(name) or not VERSION.fits(str(read)):
        return None
    return name, str(read)


def torch_build(packages: Mapping[str, FoundPackage], of_image: CudaVersion | None, code: GpuCodeFound | None) -> str:
    """What a torch is built for: as its label says, else the CUDA runtime beside it, else the image.

    code: of its libraries; None if nobody has read it. `cu128`, `cpu`; empty without torch, or if nothing says.
    """
    torch = packages.get("torch")
    if torch is None:
        return ""
    label = Version(torch.version).local
    if label == "cpu" or code == GpuCodeFound():
        return "cpu"
    if label and _LABEL.fullmatch(label):
        return label
    runtimes: list[tuple[int, ...]] = []
    for each in packages.values():
        if _RUNTIME.fullmatch(each.name) and len(found := numeric(each.version)) >= 2:
            runtimes.append(found[:2])
    cuda = CudaVersion(*max(runtimes)) if runtimes else of_image
    return cuda.variant if cuda else ""


def is_release(torch: str) -> bool:
    """Whether a version of torch is one that its project publishes wheels for, whose family is built for it too."""
    version = Version(torch)
    is_labelled = version.local is not None and version.local != "cpu" and not _LABEL.fullmatch(version.local)
    return not (is_labelled or version.is_prerelease)


def shown_packages(found: FoundEnvironment, environment: Mapping[str, str]) -> dict[str, FoundPackage]:
    """The packages as resolvers see them: without requirements that the environment itself does not meet.

    It is as its author left it: nothing of it moves, and nothing is added for it alone. environment: for markers.
    """
    return {name: _as_it_is(each, found.packages, environment) for name, each in found.packages.items()}


def bounds_of(found: FoundEnvironment, environment: Mapping[str, str]) -> list[Bound]:
    """Bounds on what is installed on top of an environment.

    They are those that the environment states, and what its packages require of others that it lacks. environment: for
    markers.
    """
    reasons: dict[str, Reason] = {}
    for line in found.constraints:
        requirement = parsed(line)
        # What is there stays as it is, whatever the constraints say.
        if requirement is not None and normalised(requirement.name) not in found.packages:
            reasons[line] = reason("constraint-of", line=line, place=found.place)
    for package in found.packages.values():
        for requirement in applicable(declared(package.metadata or b""), environment, frozenset()):
            name = normalised(requirement.name)
            if name not in found.packages and requirement.specifier and requirement.url is None:
                line = f"{name}{requirement.specifier}"
                reasons.setdefault(line, _required_there(package, line))
    return [Bound(line, why=(why,)) for line, why in reasons.items()]


def _required_there(package: FoundPackage, line: str) -> Reason:
    return reason("required-there", place=package.place, package=package.name, version=package.version, line=line)


def _as_it_is(
    package: FoundPackage, packages: Mapping[str, FoundPackage], environment: Mapping[str, str]
) -> FoundPackage:
    if package.metadata is None:
        return package
    unmet = {}
    for requirement in applicable(declared(package.metadata), environment, frozenset()):
        other = packages.get(normalised(requirement.name))
        if other is None or not requirement.specifier.contains(other.version, prereleases=True):
            has = f"{other.name} is {other.version}" if other else f"{requirement.name} is not there"
            unmet[str(requirement)] = f"{without_marker(requirement)} ({has})"
    if not unmet:
        return package

    def is_met(text: str) -> bool:
        requirement = parsed(text)
        return requirement is None or str(requirement) not in unmet

    return replace(package, metadata=without_requirements(package.metadata, is_met), unmet=tuple(unmet.values()))
