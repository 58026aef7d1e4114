"""What is told of one package, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from envspec.explain.chains import Half, Link
from envspec.explain.explanation import CondaVariant, PackageExplanation, Variant
from envspec.explain.layout import gpu_code_rows, section, size, spoken_moment, spoken_platforms, wrapped
from envspec.models import DEFAULT_INDEX, SPEC, Refusal


def package_text(told: PackageExplanation, width: int = 100) -> str:
    """The package on each platform, with those that agree told together; ends with a line feed."""
    sections = [lines for variant in told.conda for lines in _conda_variant(variant, width)]
    sections += [lines for variant in told.variants for lines in _variant(told, variant, width)]
    if told.absent:
        sections.append([f"not on {spoken_platforms(told.absent)}"])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _variant(told: PackageExplanation, variant: Variant, width: int) -> list[list[str]]:
    extras = f"[{','.join(variant.extras)}]" if variant.extras else ""
    where = spoken_platforms(file.platform for file in variant.files)
    sections = [
        # Conda may have something else under the same name.
        [f"{told.name}{extras} {variant.version}{' from a wheel' if told.conda else ''} on {where}"],
        section("asked for by", _tree(variant.chains)),
        section("newest not taken", _newest(variant.newest, width)),
        section("GPU code", gpu_code_rows(variant.gpu_code)),
        section("GPU code read from the wheel", gpu_code_rows(variant.gpu_code_read)),
        section("files", _files(variant)),
    ]
    return [lines for lines in sections if lines]


def _conda_variant(variant: CondaVariant, width: int) -> list[list[str]]:
    where = spoken_platforms(file.platform for file in variant.files)
    provided = ", ".join(f"{each.name} {each.version}" for each in variant.provides)
    sections = [
        [
            f"{variant.name} {variant.version} of {variant.channel} on {where}",
            *wrapped(f"to wheels it is {provided}" if provided else "", width, "  "),
        ],
        section("asked for by", _tree(variant.chains, Half.CONDA)),
        section("newest not taken", _newest(variant.newest, width)),
        section("GPU code", gpu_code_rows(variant.gpu_code)),
        section("files", _conda_files(variant)),
    ]
    return [lines for lines in sections if lines]


def _newest(newest: Refusal | None, width: int) -> list[str]:
    return [newest.version, *wrapped(newest.why, width)] if newest else []


def _tree(chains: Sequence[Sequence[Link]], half: Half = Half.WHEELS) -> list[str]:
    """Chains with what they begin with in common told once, each step indented below the one that led to it."""
    lines: list[str] = []
    before: Sequence[Link] = ()
    for chain in sorted(chains, key=_from_the_spec_first):
        shared = next(
            (place for place, (one, other) in enumerate(zip(before, chain, strict=False)) if one != other),
            min(len(before), len(chain)),
        )
        lines += [
            f"{'  ' * depth}{_asker(link, half)}: {link.requirement}"
            for depth, link in enumerate(chain)
            if depth >= shared
        ]
        before = chain
    return lines


def _asker(link: Link, half: Half) -> str:
    """A conda package that asks for a wheel says where it is from."""
    channel = f"of {link.channel}" if link.channel and half is Half.WHEELS else None
    return " ".join(filter(None, (link.name, link.version, channel)))


def _from_the_spec_first(chain: Sequence[Link]) -> tuple[bool, list[tuple[str, str]]]:
    return chain[0].name != SPEC, [(link.name, link.requirement) for link in chain]


def _files(variant: Variant) -> list[str]:
    lines: list[str] = []
    for item in variant.files:
        file = item.file
        known = [
            "size unknown" if file.size_bytes is None else size(file.size_bytes),
            *([] if file.index == DEFAULT_INDEX else [f"from {file.index}"]),
            *([f"uploaded {spoken_moment(item.uploaded)}"] if item.uploaded else []),
        ]
        lines += [f"{item.platform.value}: {file.filename}", f"  {', '.join(known)}", f"  sha256:{file.sha256}"]
        lines += [f"  {file.url}"] if file.url else []
    return lines


def _conda_files(variant: CondaVariant) -> list[str]:
    lines: list[str] = []
    for item in variant.files:
        known = [
            f"build {item.build}",
            "size unknown" if item.size_bytes is None else size(item.size_bytes),
            *([f"built {spoken_moment(item.built)}"] if item.built else []),
        ]
        lines += [
            f"{item.platform.value}: {item.filename}",
            f"  {', '.join(known)}",
            f"  sha256:{item.sha256}",
            f"  {item.url}",
        ]
    return lines
