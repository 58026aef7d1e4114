"""Extensions without a wheel that fits: what is missing, and what to change so that there is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from envspec.errors import NoSolution
from envspec.facts.extensions import Extensions, Label
from envspec.facts.tables import numeric
from envspec.models import Target
from envspec.names import normalised
from envspec.resolve.pypi.index.page import ListedFile
from envspec.resolve.pypi.index.selection import version_of
from envspec.resolve.pypi.index.view import View
from envspec.resolve.pypi.metadata import parsed
from envspec.resolve.pypi.resolver import PypiRequest
from envspec.resolve.pypi.wheel_coverage import loading_pythons
from envspec.spec.pip_lines import index_lines


@dataclass(frozen=True, slots=True)
class _Wheel:
    version: Version
    label: Label
    filename: str


class NoFittingWheel(NoSolution):
    """An index has wheels of an extension, and none fits the target's torch."""

    code = "no-fitting-wheel"


async def no_fitting_wheel(name: str, request: PypiRequest, view: View) -> NoFittingWheel | None:
    """The error for an extension whose index has wheels with labels; None if it has none, or no such project is known.

    The cause is one of: the target's Python or platform, its GPUs, or its torch.
    """
    extensions = view.rules.extensions
    if name not in extensions or name in view.rules.direct or name in view.rules.provided:
        return None
    wheels = list(_labelled(name, await view.listed(name), extensions, request))
    if not wheels:
        return None
    index = view.rules.index_of(name).name
    loadable = [wheel for wheel in wheels if view.rank(wheel.filename) is not None]
    if not loadable:
        return _none_is_loadable(name, wheels, index, request.target)
    newest = max(wheel.version for wheel in wheels).public
    text = f"{name} {newest}: no wheel of index {index} fits {_wanted(extensions)}"
    ways = []
    if name in view.observed().withheld:
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
    changes = [found for label in labels if (found := extensions.changes(label))]
    if changes and not min(changes)[0]:
        # One fits; something else than the spec's own torch excludes it.
        return None
    there = f"its wheels there are for {_listing(labels)}"
    if all(label.new_abi is False for label in labels):
        there += ", with the C++ ABI before 2011"
    hint = "; or ".join(filter(None, (_least(changes), *ways)))
    return NoFittingWheel(f"{text}: {there}", hint=hint or f"leave {name} out")


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
    if any(extensions.fits(name, wheel.version) for wheel in fitting):
        return ""
    obstacles = {extensions.obstacle(name, wheel.version) for wheel in fitting} - {""}
    return obstacles.pop() if len(obstacles) == 1 else ""


async def labels_of(name: str, release: str, request: PypiRequest, view: View) -> str:
    """What the wheels of a release are for; empty without labels, or if the target cannot load them."""
    if name not in view.rules.extensions:
        return ""
    wheels = _labelled(name, await view.listed(name), view.rules.extensions, request)
    labels = [each.label for each in wheels if each.version.public == release and view.rank(each.filename) is not None]
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
        notes |= {row.note: None} if row.note else {}
        labels = [Label(torch, variant) for torch, variants in row.wheels.items() for variant in variants]
        found = [(*change, label) for label in labels if (change := extensions.changes(label))]
        if found and row.pages and row.confidence != "unverified":
            # Of equal changes, the newest CUDA that fits.
            _, _, lines, label = min(found, key=lambda each: (each[:2], -each[3].cuda_number))
            pin = f'"torch=={label.torch}.*"'
            # Wheels without a label do not require it themselves.
            needed = lines if row.label or pin in lines else (pin, *lines)
            what = f"{label}{', with ' if needed else ''}{' and '.join(needed)}"
            pages.setdefault((label.fill(row.pages[0], version), row.format, what), []).append(name)
    texts = [*notes]
    for (url, form, what), names in pages.items():
        head, _, *rest = index_lines(url, sorted(names), ['format = "links"'] if form == "links" else [])
        pasted = "\n    ".join([head, f'name = "{min(names)}"', *rest])
        texts.append(f"use the project's own wheels for {what} (envspec did not check this address):\n    {pasted}")
    return "\n  or ".join(texts)


def _labelled(name: str, files: Iterable[ListedFile], extensions: Extensions, request: PypiRequest) -> Iterable[_Wheel]:
    """The wheels with labels of the releases that the spec allows."""
    required = [r for text in request.requirements if (r := parsed(text)) and normalised(r.name) == name]
    for filename in (file.filename for file in files):
        version = version_of(filename) if filename.endswith(".whl") else None
        label = extensions.label(name, version) if version is not None else None
        if version is None or label is None:
            continue
        if all(each.specifier.contains(version, prereleases=True) for each in required):
            yield _Wheel(version, label, filename)


def _wanted(extensions: Extensions) -> str:
    """`torch==2.8.0 for CUDA 12.8`."""
    torch = f"torch {extensions.given}" if extensions.given else f"torch{extensions.torch}"
    allowed = [each for each in extensions.builds if extensions.torch.contains(each.version, prereleases=True)]
    if not extensions.builds:
        return f"{torch}: set [cuda] version: it decides what torch is built for"
    cudas = dict.fromkeys(f"CUDA {each.cuda}" if each.cuda else "the CPU" for each in allowed)
    old = ", with the C++ ABI before 2011" if allowed and not any(each.new_abi for each in allowed) else ""
    return " for ".join(filter(None, (torch, ", ".join(cudas)))) + old


def _listing(labels: Iterable[Label]) -> str:
    """`torch 2.7, 2.8 for CUDA 12; torch 2.9 for CUDA 13`; of labels for both C++ ABIs, the torch and CUDA alone."""
    groups: dict[str, set[str]] = {}
    for label in labels:
        groups.setdefault(label.cuda if label.variant else "", set()).add(label.torch)
    texts = []
    for cuda, torches in groups.items():
        known = ", ".join(sorted(filter(None, torches), key=numeric))
        texts.append(" for ".join(filter(None, (f"torch {known}" if known else "", cuda))))
    return "; ".join(texts)


def _least(changes: Sequence[tuple[int, tuple[int, ...], tuple[str, ...]]]) -> str:
    if not changes:
        return ""
    lines = min(changes)[2]
    return f"set {' and '.join(lines)}" if lines else ""
