"""What all files with conda packages have: channels, match specs, pinned packages, and what they imply."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from envspec.adopt.markers import in_brackets
from envspec.credentials import channel_without_credentials, channels_without_credentials, has_login
from envspec.importers.pip import add_cuda
from envspec.importers.types import CPU, Clue, Import, Outcome, Source, Unreadable
from envspec.models import Platform
from envspec.origins import CHANNEL_ALIAS
from envspec.spec.conda import channel_of, parts_of, read_channel, read_match_spec
from envspec.spec.errors import BadValue
from envspec.spec.values import env_name

#: The channels that conda calls `defaults`, outside of Windows. Source: conda's documentation, `default_channels`.
DEFAULTS: Final = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
#: Words for several platforms: selectors of conda-lock, `[target.WORD]` of pixi. Source: conda-lock 4.0.3,
#: `src_parser/selectors.py`.
_SELECTORS: Final[Mapping[str, frozenset[str]]] = {
    "linux": frozenset({"linux-64", "linux-aarch64", "linux-ppc64le"}),
    "linux64": frozenset({"linux-64"}),
    "aarch64": frozenset({"linux-aarch64"}),
    "ppc64le": frozenset({"linux-ppc64le"}),
    "unix": frozenset({"linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64"}),
    "osx": frozenset({"osx-64", "osx-arm64"}),
    "osx64": frozenset({"osx-64"}),
    "arm64": frozenset({"osx-arm64"}),
    "win": frozenset({"win-64"}),
    "win64": frozenset({"win-64"}),
}
#: The same in PEP 508's markers.
_MARKERS: Final = {
    "linux-64": "sys_platform == 'linux' and platform_machine == 'x86_64'",
    "linux-aarch64": "sys_platform == 'linux' and platform_machine == 'aarch64'",
    "osx-arm64": "sys_platform == 'darwin' and platform_machine == 'arm64'",
    "win-64": "sys_platform == 'win32'",
}
#: Packages of conda and of PyPI that exist for Windows alone. Source: conda-forge's feedstocks that skip all else.
_ONLY_WINDOWS: Final = re.compile(
    r"ucrt|vc|vc\d+_runtime|vcomp\d+|vs20\d\d_(?:runtime|win-64)|vswhere|m2-.*|m2w64-.*|msys2-.*|pywin32(?:-.*)?|pywinpty"
    r"|winpty|win_inet_pton|win32[-_]setctime|wincertstore|icc_rt|console_shortcut|menuinst|pthreads-win32"
    r"|libwinpthread|pyreadline3?"
)
WINDOWS: Final = Platform.WIN_64.value
#: The entry of a package of an export, which is for Linux: there is no CUDA image of Windows.
NOT_ON_LINUX: Final = "exported on Windows, and only Windows has it; `--platform win-64` keeps the spec for Windows"
#: Of one file. As many as a spec may have.
MOST_PACKAGES: Final = 20_000
_PLATFORMS: Final = tuple(platform.value for platform in Platform)

#: What a channel means today. Source: pytorch/pytorch#138506, "Deprecating PyTorch's official Anaconda channel"
#: (its last release is 2.5.1); conda-forge's documentation, "CUDA 12" (the toolkit's parts as packages of their own).
_CHANNELS: Final = {
    "pytorch": "its last pytorch is 2.5.1: newer ones are on conda-forge and on the Python package index",
    "pytorch-nightly": "it has no new builds since 2024: nightly builds of torch are on PyTorch's own index only",
    "nvidia": "CUDA's libraries; conda-forge has them too since CUDA 12",
}
#: Packages whose version is that of CUDA.
_CUDA: Final = re.compile(r"cudatoolkit|pytorch-cuda|cuda(?:-(?:version|toolkit|runtime|libraries|cudart|nvcc))?")
#: CUDA in the build of a package: `py3.11_cuda12.4_cudnn9.1.0_0` (pytorch), `cuda129_generic_py311_h...` (conda-forge).
_CUDA_BUILD: Final = re.compile(r"(?<![a-z])cu(?:da)?_?(?:(\d{1,2})\.(\d)|(\d{2})(\d))(?![\d.])")
_CPU_BUILD: Final = re.compile(r"(?:^|_)cpu(?:_|$)")
_TORCH: Final = ("pytorch", "libtorch")
_ONE_VERSION: Final = re.compile(r"(?:==|=|~=)?(\d+(?:\.\d+)*)(?:\.?\*)?")
_SECRET: Final = re.compile(r"(?:^|_)(?:token|secret|passw(?:or)?d|key|credentials?)(?:_|$)", re.IGNORECASE)


def check_count(file: str, count: int) -> None:
    """Raises Unreadable: more packages than a spec may have."""
    if count > MOST_PACKAGES:
        raise Unreadable(f"{file} has more than {MOST_PACKAGES} packages")


def add_channel(imported: Import, source: Source, channel: str, text: str = "") -> None:
    """A channel of a list, in its order. text: the line, unless the channel."""
    text = channels_without_credentials(text or channel)
    if channel == "nodefaults":
        imported.add(source, text, Outcome.TRANSLATED, "only the channels of the spec are used")
        return
    urls, why = _channels(channel)
    try:
        read = [read_channel(url) for url in urls]
    except BadValue as bad:
        imported.add(source, text, Outcome.REFUSED, f"{bad.found}; {bad.hint}")
        return
    used = [use_channel(imported, url) for url in read]
    if not why and used != [channel]:
        why = f"`{used[0]}`"
    for found in re.finditer(r"/label/cuda-(\d+\.\d+)", channel):
        add_cuda(found[1], source, imported, f"the channel {channel_without_credentials(channel)}")
    if why:
        imported.add(source, text, Outcome.TRANSLATED, why)
    else:
        imported.add(source, text, Outcome.KEPT, _CHANNELS.get(channel, ""))


def use_channel(imported: Import, channel: str) -> str:
    """Append a channel to those of the spec, unless it is there. Returns it as the spec has it."""
    channel = channel.removeprefix(f"{CHANNEL_ALIAS}/")
    if channel not in imported.draft.channels:
        imported.draft.channels.append(channel)
    return channel


def _channels(channel: str) -> tuple[tuple[str, ...], str]:
    """The channels of a spec for one that conda knows, and why they are others; empty if it stays."""
    if channel == "defaults":
        return DEFAULTS, f"`defaults` is conda's word for {' and '.join(DEFAULTS)}"
    if found := re.fullmatch(r"(pkgs/\w+)(?:/[\w-]+-\d\d)?", channel):
        return (f"https://repo.anaconda.com/{found[1]}",), f"https://repo.anaconda.com/{found[1]}"
    bare = channel_without_credentials(channel)
    if found := re.fullmatch(r"(.+?)/(?:noarch|linux-\w+|osx-\w+|win-\w+)/?", bare):
        return (found[1],), f"{found[1]}: a spec names the channel, not one of its platforms"
    if bare != channel:
        return (bare,), "without its login: write it as `${VARIABLE}`"
    return (bare,), ""


def add_platform(imported: Import, source: Source, platform: str) -> None:
    """A platform of a list."""
    if platform not in _PLATFORMS:
        imported.add(source, platform, Outcome.REFUSED, f"envspec locks for {', '.join(_PLATFORMS)}")
        return
    if platform not in platforms_of(imported) or not imported.draft.platforms:
        imported.draft.platforms.append(Clue(platform, source, "it is listed there"))
    imported.add(source, platform, Outcome.KEPT)


def platforms_of(imported: Import) -> tuple[str, ...]:
    """The platforms of the spec, as far as the user or the sources say."""
    return imported.platforms or tuple(clue.value for clue in imported.draft.platforms) or (Platform.LINUX_64.value,)


def order_of_platforms(imported: Import) -> Callable[[str], int]:
    """A key to sort by: the place of a platform among those of the spec; other platforms come last."""
    places = {platform: at for at, platform in enumerate(platforms_of(imported))}
    return lambda platform: places.get(platform, len(places))


def selected(word: str, platforms: tuple[str, ...]) -> tuple[str, ...] | None:
    """Those of the spec's platforms that a platform or a word for several stands for; None if it stands for all, or
    for nothing that is known.
    """
    known = _SELECTORS.get(word, frozenset({word}) & frozenset(_MARKERS))
    if not known and not re.fullmatch(r"(?:linux|osx|win|emscripten|wasi)-\w+", word):
        return None
    found = tuple(platform for platform in platforms if platform in known)
    return None if found == platforms else found


def python_marker(platforms: tuple[str, ...]) -> str:
    """The marker of requirements that are for these platforms only; empty without any."""
    markers = [_MARKERS[platform] for platform in platforms]
    if len(markers) > 1:
        markers = [f"({each})" for each in markers]
    return " or ".join(markers)


def with_markers(requirement: str, *markers: str) -> str:
    """A requirement that applies if all of the markers hold; empty ones always do."""
    found = list(filter(None, dict.fromkeys(markers)))
    if not found:
        return requirement
    if len(found) > 1:
        found = list(map(in_brackets, found))
    return f"{requirement} ; {' and '.join(found)}"


def add_name(imported: Import, source: Source, name: str) -> None:
    """The name of the environment; the first source that has one decides."""
    if imported.draft.name:
        imported.add(source, f"name: {name}", Outcome.TRANSLATED, f"the name is {imported.draft.name} already")
        return
    own = imported.draft.name = env_name(name)
    if own == name:
        imported.add(source, f"name: {name}", Outcome.KEPT)
    else:
        imported.add(source, f"name: {name}", Outcome.TRANSLATED, f"`{own}`")


def add_variable(imported: Import, source: Source, name: str, value: str, text: str = "") -> None:
    """A variable of the environment's programs. text: the line."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
        imported.add(source, text or f"{name}: {value}", Outcome.REFUSED, "no environment variable")
    elif _SECRET.search(name) or has_login(value):
        reason = "it may be a secret, which everybody who has the image could read: set it when the container starts"
        imported.add(source, f"{name}: \u2026", Outcome.REFUSED, reason)
    else:
        imported.draft.env[name] = value
        imported.add(source, text or f"{name}: {value}", Outcome.KEPT)


def add_requirement(
    imported: Import, source: Source, spec: str, platforms: tuple[str, ...] = (), text: str = ""
) -> None:
    """A match spec that somebody requires. platforms: those that it is for, if not all. text: the line, unless the
    spec.
    """
    is_same, text = text in ("", spec), channels_without_credentials(text or spec)
    spec = spec.strip()
    own, urls, why = _with_channel_of_spec(spec)
    try:
        name, version, build = parts_of(read_match_spec(own))
        channels = [read_channel(url) for url in urls]
    except BadValue as bad:
        imported.add(source, text, Outcome.REFUSED, f"{bad.found}; {bad.hint}")
        return
    for channel in channels:
        use_channel(imported, channel)
    if name == "python":
        _add_python(imported, source, version, text)
        return
    imported.draft.conda += [(own, platform) for platform in platforms or ("",)]
    reasons = []
    if own != spec:
        reasons += [f"`{own}`", why or f"[conda] channels has {urls[0]}"]
    elif not is_same:
        reasons.append(f"`{own}`")
    if platforms:
        reasons.append(f"on {' and '.join(platforms)} only")
    outcome = Outcome.TRANSLATED if reasons else Outcome.KEPT
    used = channel_of(own) or ""
    if used in _CHANNELS:
        reasons.append(f"{used}: {_CHANNELS[used]}")
    reasons += add_cuda_of(imported, source, name, version, build)
    imported.add(source, text, outcome, "; ".join(reasons))


def _with_channel_of_spec(match_spec: str) -> tuple[str, tuple[str, ...], str]:
    """A match spec as a spec has it, the channels that it needs, and why these are others than it names."""
    prefix, _, bare = match_spec.rpartition("::")
    if not prefix:
        return match_spec, (), ""
    urls, why = _channels(prefix)
    # A spec names a channel by its address in `channels` only.
    if len(urls) != 1 or "://" in urls[0]:
        return bare.strip(), urls, why
    if not why:
        return match_spec, urls, ""
    return f"{urls[0]}::{bare.strip()}", urls, why


def with_channel(channel: str | None, name: str) -> str:
    """The match spec of a package, of a channel if one is named."""
    return f"{channel}::{name}" if channel else name


def is_only_of_windows(text: str) -> bool:
    """Whether a requirement is on a package that only Windows has."""
    name = re.split(r"[\s=<>!~;\[]", text.rpartition("::")[2], maxsplit=1)[0]
    return bool(_ONLY_WINDOWS.fullmatch(name.lower()))


def add_pinned(imported: Import, name: str, version: str, build: str, source: Source, *, is_moved: bool = False) -> str:
    """An installed or locked package: its version is preferred. Returns what that means, for the ledger.

    is_moved: it is of another system, whose builds the spec's platform does not have.
    """
    draft, record, reason = imported.draft, version, f"preferred version {version}"
    if build and not is_moved:
        record += f" {build}"
        reason += f" ({build})"
    draft.conda_versions.setdefault(name.lower(), record.strip())
    if name == "python":
        draft.pythons.append(Clue(version, source, f"conda's python {version}"))
    return "; ".join([reason, *add_cuda_of(imported, source, name, version, build)])


def add_cuda_of(imported: Import, source: Source, name: str, version: str, build: str) -> list[str]:
    """The CUDA version that a package implies, as a clue. Returns it in words, for the ledger."""
    why = f"{name} {version} {build}".strip()
    if number := _cuda_of(name, version, build):
        add_cuda(number, source, imported, why)
        return [f"it implies CUDA {number}"]
    if name in ("cpuonly", "pytorch-cpu") or (name in _TORCH and _CPU_BUILD.search(build)):
        add_cuda(CPU, source, imported, why)
        return ["a build for the CPU: the spec has no [cuda]"]
    return []


def _cuda_of(name: str, version: str, build: str) -> str:
    """The CUDA of a package by its version or its build, `12.4`; empty if neither says it."""
    if _CUDA.fullmatch(name) and (found := _ONE_VERSION.fullmatch(version)) and "." in found[1]:
        return ".".join(found[1].split(".")[:2])
    if found := _CUDA_BUILD.search(build):
        # In one of two forms: `cuda12.4` or `cu124`.
        return ".".join(filter(None, found.groups()))
    return ""


def _add_python(imported: Import, source: Source, version: str, text: str) -> None:
    if not version or version == "*":
        imported.add(source, text, Outcome.TRANSLATED, "Python is in [env] python")
    elif value := python_value(version):
        imported.draft.pythons.append(Clue(value, source, f"`{text}`"))
        imported.add(source, text, Outcome.TRANSLATED, f"[env] python: {value}")
    else:
        imported.add(source, text, Outcome.REFUSED, "[env] python is one series, or one version: write it")


def python_value(version: str) -> str:
    """conda's condition on Python as a clue has it: a series, a version or a specifier; empty if none says the same."""
    if (found := _ONE_VERSION.fullmatch(version)) and not version.startswith("~="):
        parts = found[1].split(".")
        if len(parts) == 1:
            return f">={parts[0]},<{int(parts[0]) + 1}"
        # `==3.11` is 3.11.0 to conda, and its author's series.
        return ".".join(parts[:3])
    try:
        return str(SpecifierSet(version))
    except InvalidSpecifier:
        return ""


def archive_parts(filename: str) -> tuple[str, str, str] | None:
    """(name, version, build) of a conda archive's file name; None if it is none."""
    stem = re.fullmatch(r"(.+)-([^-]+)-([^-]+)\.(?:conda|tar\.bz2)", filename)
    return (stem[1].lower(), stem[2], stem[3]) if stem else None
