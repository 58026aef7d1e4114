"""Extensions without a wheel that fits: what is missing, and what to change so that there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.extensions import Extensions, Label
from envspec.facts.tables import ExtensionRow, numeric
from envspec.models import Target
from envspec.names import normalised
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.selection import version_of
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.types import PypiRequest
from envspec.resolve.pypi.wheel_coverage import loading_pythons
from envspec.spec.pip_lines import index_lines


class _Wheel(Struct, frozen=True):
    version: Version
    label: Label
    filename: str


class NoFittingWheel(NoSolution, code="no-fitting-wheel"):
    """An index has wheels of an extension, and none fits the target's torch."""


async def no_fitting_wheel(name: str, request: PypiRequest, view: View) -> NoFittingWheel | None:
    """The error for an extension whose index has wheels with labels; None if it has none, or no such project is known.

    The cause is one of: the target's Python or platform, its GPUs, or its torch.
    """
    extensions = view.rules.extensions
    if name not in extensions or name in view.rules.direct or name in view.rules.provided:
        return None
    wheels = list(_wheels_of(name, await view.listed(name), extensions, request))
    if not wheels:
        return None
    index = view.rules.index_of(name).name
    loadable = [wheel for wheel in wheels if view.rank(wheel.filename) is not None]
    if not loadable:
        return _none_is_loadable(name, wheels, index, request.target)
    newest = max(wheel.version for wheel in wheels).public
    text = f"{name} {newest}: no wheel of index {index} fits {_wanted_torch(extensions)}"
    ways = []
    if name in view.withheld:
        ways = [f'allow its build in [pip.build]: packages = ["{name}"]']
    fitting = [wheel for wheel in loadable if any(map(wheel.label.fits, extensions.builds))]
    if obstacle := _obstacle(name, fitting, extensions):
        advice = "select a release with code for it, or leave the GPU out of [cuda] gpus"
        return NoFittingWheel(f"{text}: {obstacle}", hint="; or ".join([advice, *ways]))
    return _all_for_others(name, text, loadable, extensions, ways)


def _all_for_others(
    name: str, text: str, loadable: Sequence[_Wheel], extensions: Extensions, ways: Sequence[str]
) -> NoFittingWheel | None:
    """The error for wheels that are all for another torch; None if one fits. ways: others to get the extension."""
    labels = list(dict.fromkeys(wheel.label for wheel in loadable))
    changes = list(filter(None, map(extensions.changes, labels)))
    if changes and not min(changes)[0]:
        # One fits; something else than the spec's own torch excludes it.
        return None
    there = f"its wheels there are for {_listing(labels)}"
    if all(label.new_abi is False for label in labels):
        there += ", with the C++ ABI before 2011"
    hints = list(ways)
    if changes and (lines := min(changes)[2]):
        hints.insert(0, f"set {' and '.join(lines)}")
    return NoFittingWheel(f"{text}: {there}", hint="; or ".join(hints) or f"leave {name} out")


def _none_is_loadable(name: str, wheels: Iterable[_Wheel], index: str, target: Target) -> NoFittingWheel:
    """The error for an extension without a wheel for the target's Python or platform."""
    platform = target.platform.value
    hint = f"leave {name} out on {platform}, with a marker"
    if pythons := loading_pythons([wheel.filename for wheel in wheels], target):
        hint = f"wheels there are for Python {', '.join(pythons)}: set one of them in [env] python"
    text = f"{name}: index {index} has wheels with labels, and none for Python {target.python.series} on {platform}"
    return NoFittingWheel(text, hint=hint)


def _obstacle(name: str, fitting: Sequence[_Wheel], extensions: Extensions) -> str:
    """Why no wheel that fits the target's torch has code for its GPUs; empty if that is not the cause."""
    obstacles: set[str] = set()
    for wheel in fitting:
        if extensions.fits(name, wheel.version):
            return ""
        obstacles.add(extensions.obstacle(name, wheel.version))
    obstacles.discard("")
    return obstacles.pop() if len(obstacles) == 1 else ""


async def labels_of(name: str, release: str, request: PypiRequest, view: View) -> str:
    """What the wheels of a release are for; empty without labels, or if the target cannot load them."""
    if name not in view.rules.extensions:
        return ""
    wheels = _wheels_of(name, await view.listed(name), view.rules.extensions, request)
    labels: list[Label] = []
    for each in wheels:
        if each.version.public == release and view.rank(each.filename) is not None:
            labels.append(each.label)
    return _listing(labels)


def published_elsewhere(releases: Iterable[tuple[str, str]], extensions: Extensions) -> str:
    """Where projects publish wheels of extensions that the indexes lack or give as sdists alone, as lines to paste.

    releases: names, each with its version if one is known. Empty if nothing is known of them.
    """
    notes: dict[str, None] = {}
    pages: dict[tuple[str, str, str], list[str]] = {}
    for name, version in releases:
        row = extensions.row(name, version)
        if row is None:
            continue
        if row.note:
            notes[row.note] = None
        closest = _closest(row, extensions)
        if closest and row.pages and row.confidence != "unverified":
            lines, label = closest
            pin = f'"torch=={label.torch}.*"'
            if not row.label and pin not in lines:
                # Wheels without a label do not require it themselves.
                lines = (pin, *lines)
            what = str(label)
            if lines:
                what += f", with {' and '.join(lines)}"
            pages.setdefault((label.fill(row.pages[0], version), row.format, what), []).append(name)
    texts = [*notes]
    for (url, form, what), names in pages.items():
        options = ['format = "links"'] if form == "links" else []
        head, _, *rest = index_lines(url, sorted(names), options)
        pasted = "\n    ".join([head, f'name = "{min(names)}"', *rest])
        texts.append(f"use the project's own wheels for {what} (envspec did not check this address):\n    {pasted}")
    return "\n  or ".join(texts)


def _closest(row: ExtensionRow, extensions: Extensions) -> tuple[tuple[str, ...], Label] | None:
    """The label of a project's wheels that needs the fewest changes of the spec, with their lines."""
    found: list[tuple[int, tuple[int, ...], tuple[str, ...], Label]] = []
    for torch, variants in row.wheels.items():
        for variant in variants:
            label = Label(torch, variant)
            if change := extensions.changes(label):
                found.append((*change, label))
    if not found:
        return None
    # Of equal changes, the newest CUDA that fits.
    _, _, lines, label = min(found, key=lambda each: (each[:2], -each[3].cuda_number))
    return lines, label


def _wheels_of(
    name: str, files: Iterable[ListedFile], extensions: Extensions, request: PypiRequest
) -> Iterable[_Wheel]:
    """The wheels with labels of the releases that the spec allows."""
    lines = filter(None, map(parsed, request.requirements))
    required = [line for line in lines if normalised(line.name) == name]
    for file in files:
        if not file.is_wheel:
            continue
        version = version_of(file.filename)
        if version is None:
            continue
        label = extensions.label(name, version)
        if label is not None and all(each.specifier.contains(version, prereleases=True) for each in required):
            yield _Wheel(version, label, file.filename)


def _wanted_torch(extensions: Extensions) -> str:
    """`torch==2.8.0 for CUDA 12.8`."""
    torch = f"torch{extensions.torch}"
    if extensions.given:
        torch = f"torch {extensions.given}"
    if not extensions.builds:
        return f"{torch}: set [cuda] version: it decides what torch is built for"
    cudas: dict[str, None] = {}
    abis: set[bool] = set()
    for each in extensions.builds:
        if extensions.torch.contains(each.version, prereleases=True):
            cudas[f"CUDA {each.cuda}" if each.cuda else "the CPU"] = None
            abis.add(each.new_abi)
    text = " for ".join(filter(None, (torch, ", ".join(cudas))))
    if abis == {False}:
        text += ", with the C++ ABI before 2011"
    return text


def _listing(labels: Iterable[Label]) -> str:
    """`torch 2.7, 2.8 for CUDA 12; torch 2.9 for CUDA 13`; of labels for both C++ ABIs, the torch and CUDA alone."""
    groups: dict[str, set[str]] = {}
    for label in labels:
        cuda = label.cuda if label.variant else ""
        groups.setdefault(cuda, set()).add(label.torch)
    texts = []
    for cuda, torches in groups.items():
        known = ", ".join(sorted(filter(None, torches), key=numeric))
        if known:
            known = f"torch {known}"
        texts.append(" for ".join(filter(None, (known, cuda))))
    return "; ".join(texts)
