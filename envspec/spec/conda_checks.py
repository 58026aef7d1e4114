"""How the values of [conda] go together, and with the rest of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from envspec.model import Platform
from envspec.origins import channel_url
from envspec.spec.channels import read_channel
from envspec.spec.document import Document, Found, get, readable, table, texts, twice_in
from envspec.spec.faults import BadValue, KeyPath
from envspec.spec.match_specs import channel_of, read_match_spec
from envspec.spec.requirements import read_name
from envspec.spec.virtual_packages import ARCHSPEC, CUDA, PLACES, read_virtual_value, version_and_build
from envspec.spec.words import shown

_KNOWN: Final = {platform.value: platform for platform in Platform}
#: Which platforms share one family of microarchitectures.
_X86: Final = frozenset({Platform.LINUX_64, Platform.WIN_64})


def _platforms(data: Document) -> frozenset[Platform]:
    """The platforms of the spec; none where some of them can't be read, so that nothing follows from the others."""
    listed = get(data, "env", "platforms")
    if listed is None:
        return frozenset({Platform.LINUX_64})
    if not isinstance(listed, list) or not all(isinstance(name, str) and name in _KNOWN for name in listed):
        return frozenset()
    return frozenset(_KNOWN[name] for name in listed)


def _tables(data: Document) -> Iterator[tuple[KeyPath, Document]]:
    """[conda] and its platforms' tables."""
    yield ("conda",), table(data, "conda")
    for name, own in table(data, "conda", "platform").items():
        if name in _KNOWN and isinstance(own, Mapping):
            yield ("conda", "platform", name), own


def _unlisted_platforms(data: Document) -> Iterator[Found]:
    platforms = _platforms(data)
    for name in table(data, "conda", "platform"):
        if platforms and name in _KNOWN and _KNOWN[name] not in platforms:
            yield (
                ("conda", "platform", name),
                BadValue(
                    f"the spec is not for {name}: `env.platforms` does not list it",
                    f'add "{name}" to `env.platforms`, or remove this table',
                ),
            )


def _listed_twice(data: Document) -> Iterator[Found]:
    for path, own in _tables(data):
        if path != ("conda",):
            yield from twice_in(texts(own, "dependencies"), (*path, "dependencies"), str)
    for name in table(data, "conda", "names"):
        yield from twice_in(texts(data, "conda", "names", name), ("conda", "names", name), read_name)


def _unlisted_channels(data: Document) -> Iterator[Found]:
    """A match spec that insists on a channel that nobody reads has no candidate."""
    listed = table(data, "conda").get("channels", ["conda-forge"])
    read = list(readable(read_channel, texts({"channels": listed}, "channels")))
    if not isinstance(listed, list) or len(read) != len(listed):
        return
    known = {channel_url(channel) for _, channel in read}
    for name in table(data, "conda", "only"):
        # A key may hold credentials as well: none is shown.
        if not any(channel_url(each) in known for _, each in readable(read_channel, [(0, name)])):
            yield (
                ("conda", "only"),
                BadValue("a channel that `conda.channels` does not list", "write it as it is listed there"),
            )
    for path, own in _tables(data):
        for at, spec in readable(read_match_spec, texts(own, "dependencies")):
            channel = channel_of(spec)
            if channel is not None and channel_url(channel) not in known:
                yield (
                    (*path, "dependencies", at),
                    BadValue(
                        f"{shown(spec)} insists on a channel that `conda.channels` does not list",
                        f"add {shown(channel)} to `conda.channels`, or ask for the package by its name alone",
                    ),
                )


def _python_of_conda(data: Document) -> Iterator[Found]:
    source = get(data, "env", "python_source")
    conda = get(data, "conda")
    if conda is None and source == "conda":
        yield (
            ("env", "python_source"),
            BadValue("`conda`, although the spec has no [conda]", "add [conda], or remove this key"),
        )
    if not isinstance(conda, Mapping):
        return
    if source in ("standalone", "system", "base"):
        yield (
            ("env", "python_source"),
            BadValue(
                f"`{source}`, although the spec has [conda], which brings its own Python",
                "remove this key or [conda]: two Pythons in one environment hide each other",
            ),
        )
    if get(data, "image", "python") is not None:
        yield (
            ("image", "python"),
            BadValue(
                "says that the base holds a Python, although the spec has [conda], which brings its own",
                "remove this key or [conda]: two Pythons in one image hide each other",
            ),
        )


def _virtual_packages(data: Document) -> Iterator[Found]:
    platforms = _platforms(data)
    for path, own in _tables(data):
        here = platforms if path == ("conda",) else frozenset({_KNOWN[str(path[-1])]})
        for name, value in table(own, "virtual_packages").items():
            bad = _virtual_package(name, value, data, here) if isinstance(value, str) else None
            if bad is not None:
                yield (*path, "virtual_packages", name), bad


def _virtual_package(name: str, value: str, data: Document, platforms: frozenset[Platform]) -> BadValue | None:
    try:
        version_and_build(name, read_virtual_value(value))
    except BadValue as bad:
        return bad
    if platforms and not platforms & PLACES.get(name, platforms):
        told = ", ".join(sorted(platform.value for platform in platforms))
        return BadValue(
            f"no machine of {told} has it", "remove it, or add the platform that it is for to `env.platforms`"
        )
    if name == CUDA and get(data, "cuda") is None:
        return BadValue(
            "CUDA in an environment for the CPU: the spec has no [cuda]",
            "add [cuda] with its `version`, or remove this",
        )
    if name == ARCHSPEC and platforms & _X86 and platforms - _X86:
        return BadValue(
            f"{shown(value)} for machines of several kinds",
            f'give each platform its own: [conda.platform.linux-64.virtual_packages] {ARCHSPEC} = "x86_64_v3"',
        )
    return None


CONDA_CHECKS: Final[tuple[Callable[[Document], Iterator[Found]], ...]] = (
    _unlisted_platforms,
    _listed_twice,
    _unlisted_channels,
    _python_of_conda,
    _virtual_packages,
)
