"""Checks across the values of a spec.

Each check reads the parsed TOML, not the Spec, so that all problems are reported at once. A value that can't be read is
skipped: its reader reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from envspec.documents import list_of, table_of
from envspec.facts import load_facts
from envspec.facts.tables import MisnamedRow
from envspec.models import Platform
from envspec.names import normalised
from envspec.origins import channel_url
from envspec.spec.conda import (
    ARCHSPEC,
    CUDA,
    CUDA_ARCH,
    VIRTUAL_PACKAGE_PLATFORMS,
    channel_of,
    read_channel,
    read_match_spec,
    read_virtual_value,
    version_and_build,
)
from envspec.spec.dates import Age, read_as_of
from envspec.spec.document import SELECTED
from envspec.spec.errors import BadValue, KeyPath, quoted
from envspec.spec.requirements import Requirement, read_name, read_override, read_requirement, read_sdist_name
from envspec.spec.values import read_pattern, read_python

Document = Mapping[str, Any]
#: Key, problem and hint.
Found = tuple[KeyPath, str, str]
T = TypeVar("T")


def get(data: Document, *path: str) -> Any:
    """The value at `path`; None where there is none."""
    return table_of(data, *path[:-1]).get(path[-1])


def items(data: Document, kind: type[T], *path: str) -> list[tuple[int, T]]:
    """The items of this type in the list at `path`, each with its position."""
    return [(at, each) for at, each in enumerate(list_of(data, *path)) if isinstance(each, kind)]


def readable(read: Callable[[str], T], listed: Iterable[tuple[int, str]]) -> Iterator[tuple[int, T]]:
    """Those of `listed` that can be read."""
    for at, text in listed:
        with suppress(BadValue):
            yield at, read(text)


def read_all(read: Callable[[str], T], data: Document, *path: str) -> list[T]:
    """What the texts in the list at `path` are read as, without those that can't be read."""
    return [value for _, value in readable(read, items(data, str, *path))]


def twice_in(listed: list[tuple[int, str]], path: KeyPath, read: Callable[[str], str]) -> Iterator[Found]:
    """The values of a list that stand in it already, once they are read."""
    seen: dict[str, int] = {}
    for at, value in readable(read, listed):
        first = seen.setdefault(value, at)
        if first != at:
            yield (*path, at), f"{quoted(value)} is listed already, at [{first}]", "remove one of them"


_PLATFORM_OF: Final = {platform.value: platform for platform in Platform}
#: Which platforms share one family of microarchitectures.
_X86: Final = frozenset({Platform.LINUX_64, Platform.WIN_64})


def _platforms(data: Document) -> frozenset[Platform]:
    """The platforms of the spec; none where some of them can't be read, so that nothing follows from the others."""
    listed = get(data, "env", "platforms")
    if listed is None:
        return frozenset({Platform.LINUX_64})
    if not isinstance(listed, list):
        return frozenset()
    platforms = set[Platform]()
    for name in listed:
        if not isinstance(name, str) or name not in _PLATFORM_OF:
            return frozenset()
        platforms.add(_PLATFORM_OF[name])
    return frozenset(platforms)


def _tables(data: Document) -> Iterator[tuple[KeyPath, Document]]:
    """[conda] and its platforms' tables."""
    yield ("conda",), table_of(data, "conda")
    for name, own in table_of(data, "conda", "platform").items():
        if name in _PLATFORM_OF and isinstance(own, Mapping):
            yield ("conda", "platform", name), own


def _unlisted_platforms(data: Document) -> Iterator[Found]:
    platforms = _platforms(data)
    if not platforms:
        return
    for section in ("cuda", "conda"):
        for name in table_of(data, section, "platform"):
            if name in _PLATFORM_OF and _PLATFORM_OF[name] not in platforms:
                yield (
                    (section, "platform", name),
                    f"the spec is not for {name}: `env.platforms` does not list it",
                    f'add "{name}" to `env.platforms`, or remove this table',
                )


def _conda_listed_twice(data: Document) -> Iterator[Found]:
    for path, own in _tables(data):
        if path != ("conda",):
            yield from twice_in(items(own, str, "dependencies"), (*path, "dependencies"), str)
    for name in table_of(data, "conda", "names"):
        yield from twice_in(items(data, str, "conda", "names", name), ("conda", "names", name), read_name)


def _unlisted_channels(data: Document) -> Iterator[Found]:
    """A match spec that insists on a channel that nobody reads has no candidate."""
    listed = table_of(data, "conda").get("channels", ["conda-forge"])
    if not isinstance(listed, list):
        return
    known = {_url_of_channel(each) for each in listed}
    if None in known:
        return
    for name in table_of(data, "conda", "only"):
        # A key may hold credentials as well: none is shown.
        if _url_of_channel(name) not in known:
            yield ("conda", "only"), "a channel that `conda.channels` does not list", "write it as it is listed there"
    for path, own in _tables(data):
        for at, spec in readable(read_match_spec, items(own, str, "dependencies")):
            channel = channel_of(spec)
            if channel is not None and channel_url(channel) not in known:
                yield (
                    (*path, "dependencies", at),
                    f"{quoted(spec)} is from a channel that `conda.channels` does not list",
                    f"add {quoted(channel)} to `conda.channels`, or write the package without its channel",
                )


def _url_of_channel(text: object) -> str | None:
    """The URL of a channel, without credentials; None if it can't be read."""
    if not isinstance(text, str):
        return None
    with suppress(BadValue):
        return channel_url(read_channel(text))
    return None


def _python_of_conda(data: Document) -> Iterator[Found]:
    source = get(data, "env", "python_source")
    conda = get(data, "conda")
    if conda is None and source == "conda":
        yield ("env", "python_source"), "`conda`, but the spec has no [conda]", "add [conda], or remove this key"
    if not isinstance(conda, Mapping):
        return
    if source in ("standalone", "system", "base"):
        yield (
            ("env", "python_source"),
            f"`{source}`, but the spec has [conda], which installs its own Python",
            "remove this key or [conda]: two Pythons in one environment shadow each other",
        )
    if get(data, "image", "python") is not None:
        yield (
            ("image", "python"),
            "states that the base has a Python, but the spec has [conda], which installs its own",
            "remove this key or [conda]: two Pythons in one image shadow each other",
        )


def _virtual_packages(data: Document) -> Iterator[Found]:
    platforms = _platforms(data)
    for path, own in _tables(data):
        own_platforms = platforms
        if path != ("conda",):
            own_platforms = frozenset({_PLATFORM_OF[str(path[-1])]})
        for name, value in table_of(own, "virtual_packages").items():
            if not isinstance(value, str):
                continue
            bad = _virtual_package(name, value, data, own_platforms)
            if bad is not None:
                yield (*path, "virtual_packages", name), bad.found, bad.hint


def _virtual_package(name: str, value: str, data: Document, platforms: frozenset[Platform]) -> BadValue | None:
    try:
        version_and_build(name, read_virtual_value(value))
    except BadValue as bad:
        return bad
    if platforms and not platforms & VIRTUAL_PACKAGE_PLATFORMS.get(name, platforms):
        listed = ", ".join(sorted(platform.value for platform in platforms))
        return BadValue(
            f"no machine of {listed} has it", "remove it, or add the platform that it is for to `env.platforms`"
        )
    if name in (CUDA, CUDA_ARCH) and get(data, "cuda") is None:
        return BadValue(
            "CUDA in an environment for the CPU: the spec has no [cuda]",
            "add [cuda] with its `version`, or remove this",
        )
    if name == ARCHSPEC and platforms & _X86 and platforms - _X86:
        return BadValue(
            f"{quoted(value)} for machines of several kinds",
            f'give each platform its own: [conda.platform.linux-64.virtual_packages] {ARCHSPEC} = "x86_64_v3"',
        )
    return None


def check(data: Document, now: datetime) -> list[tuple[KeyPath, BadValue]]:
    """Problems between values. now: an aware time; `as_of` can't be later."""
    found = list(_future(data, now))
    for find in _CHECKS:
        found += find(data)
    return [(path, BadValue(problem, hint)) for path, problem, hint in found]


def _future(data: Document, now: datetime) -> Iterator[Found]:
    of_packages = [("env", "package_as_of", name) for name in table_of(data, "env", "package_as_of")]
    for path in (("env", "as_of"), *of_packages, ("system", "snapshot")):
        with suppress(ValueError, OverflowError):
            value = get(data, *path)
            time = read_as_of(value)
            if isinstance(time, Age) or time <= now:
                continue
            shown = value if isinstance(value, str) else value.isoformat()
            yield (
                path,
                f"{shown} is in the future (now: {now.isoformat(timespec='seconds')})",
                "files uploaded until then would change the lock: write a time in the past",
            )


def _keyed_twice(data: Document) -> Iterator[Found]:
    for path in (("env", "package_as_of"), ("build",)):
        seen: dict[str, str] = {}
        for name in table_of(data, *path):
            first = seen.setdefault(normalised(name), name)
            if first != name:
                yield (*path, name), f"{quoted(first)} is the same package", "remove one of the two"


def _listed_twice(data: Document) -> Iterator[Found]:
    for path, read in _SETS:
        yield from twice_in(items(data, str, *path), path, read)
    for at, table in items(data, dict, "pip", "index"):
        yield from twice_in(items(table, str, "packages"), ("pip", "index", at, "packages"), read_pattern)


def _two_addresses(data: Document) -> Iterator[Found]:
    """Two lines of one name are both required, but it has one address; under different markers, one for each."""
    seen: dict[tuple[str, str], tuple[int, str]] = {}
    for at, requirement in _required(data):
        address = requirement.without_credentials().url
        if address is not None:
            condition = (requirement.name, str(requirement.marker or ""))
            first_at, first = seen.setdefault(condition, (at, address))
            if first != address:
                yield (
                    ("pip", "dependencies", at),
                    f"`{requirement.name}` has another address in dependencies[{first_at}]: {quoted(first)}",
                    "keep one of them, or give them markers that exclude each other",
                )


def _overridden_twice(data: Document) -> Iterator[Found]:
    seen: dict[tuple[str, str], int] = {}
    for at, _, override in _overrides(data):
        first = seen.setdefault((override.name, str(override.marker or "")), at)
        if first != at:
            yield (
                ("pip", "overrides", at, "requirement"),
                f"`{override.name}` is overridden already, at [{first}]",
                "remove one of them, or give them markers that exclude each other",
            )


def _removed(data: Document) -> Iterator[Found]:
    required = [requirement.name for _, requirement in _required(data)]
    for at, table, override in _overrides(data):
        if table.get("remove") is not True:
            continue
        path = ("pip", "overrides", at, "requirement")
        if override.specifier:
            hint = f'write "{override.name}", or remove `remove`'
            yield path, f"`{override}` has versions, but is removed", hint
        if override.name in required:
            problem = f"`{override.name}` is removed, but the spec requires it"
            yield path, problem, "remove it from the dependencies, or remove this override"


def _overrides(data: Document) -> Iterator[tuple[int, Document, Requirement]]:
    """Position, table and requirement of each override that can be read."""
    for at, table in items(data, dict, "pip", "overrides"):
        text = table.get("requirement")
        if isinstance(text, str):
            with suppress(BadValue):
                yield at, table, read_override(text)


def _required(data: Document) -> Iterator[tuple[int, Requirement]]:
    return readable(read_requirement, items(data, str, "pip", "dependencies"))


def _misnamed(data: Document) -> Iterator[Found]:
    """Names that are written for another package, unless the spec says where the package comes from."""
    required = list(_required(data))
    placed = {requirement.name for _, requirement in required if requirement.url is not None}
    placed.update(read_all(read_name, data, "pip", "build", "packages"))
    patterns: list[str] = []
    for index in list_of(data, "pip", "index"):
        patterns += read_all(read_pattern, index, "packages")
    misnamed = load_facts().misnamed
    for at, requirement in required:
        row = misnamed.get(requirement.name)
        if row is None or row.sdists or row.package in placed:
            continue
        if any(fnmatchcase(row.package, pattern) for pattern in patterns):
            continue
        if row.placeholder and not requirement.specifier.contains(row.placeholder):
            continue
        yield (
            ("pip", "dependencies", at),
            f"{quoted(requirement.name)}: {row.reason}",
            _how_to_rename(requirement, row),
        )


def _how_to_rename(requirement: Requirement, row: MisnamedRow) -> str:
    if not row.instead:
        return row.hint
    text = row.instead
    if row.same_versions:
        text += str(requirement.specifier)
    if requirement.marker:
        text += f"; {requirement.marker}"
    return f"write {quoted(text, 200)}"


def _index_names(data: Document) -> Iterator[Found]:
    seen: dict[str, int] = {}
    for at, table in items(data, dict, "pip", "index"):
        name = table.get("name")
        if isinstance(name, str) and seen.setdefault(name, at) != at:
            yield (
                ("pip", "index", at, "name"),
                f"{quoted(name)} is the name of index [{seen[name]}] already",
                "give each index a name of its own",
            )


def _pages_of_links(data: Document) -> Iterator[Found]:
    for at, table in items(data, dict, "pip", "index"):
        url = table.get("url")
        if isinstance(url, str) and url.endswith((".html", ".htm")) and "format" not in table:
            yield (
                ("pip", "index", at, "url"),
                f"{quoted(url)} is one page, and a simple index has one for each name below its address",
                'add `format = "links"` if it is a page of links, as pip\'s `-f` reads',
            )


def _index_patterns(data: Document) -> Iterator[Found]:
    """A package that two indexes claim would come from whichever is read first."""
    seen: list[tuple[int, str]] = []
    for at, table in items(data, dict, "pip", "index"):
        own = list(readable(read_pattern, items(table, str, "packages")))
        for position, pattern in own:
            for other_at, other in seen:
                # A plain name goes before a pattern: that pair decides itself.
                if ("*" in pattern) == ("*" in other) and overlap(pattern, other):
                    yield (
                        ("pip", "index", at, "packages", position),
                        f"{quoted(pattern)} and {quoted(other)} of index [{other_at}] match the same names",
                        "make one of the patterns narrower: each name comes from one index",
                    )
                    break
        seen += [(at, pattern) for _, pattern in own]


def overlap(one: str, other: str) -> bool:
    """Whether some text matches both patterns, in which `*` stands for any text."""
    height, width = len(one), len(other)
    # common[i][j]: whether the rests one[i:] and other[j:] have a text in common.
    common = [[False] * (width + 1) for _ in range(height + 1)]
    common[height][width] = True
    for i in range(height, -1, -1):
        for j in range(width, -1, -1):
            left, right = one[i : i + 1], other[j : j + 1]
            if "*" in (left, right):
                common[i][j] = (left != "" and common[i + 1][j]) or (right != "" and common[i][j + 1])
            elif left and left == right:
                common[i][j] = common[i + 1][j + 1]
    return common[0][0]


#: Keys of [pip] that decide what the lock of another tool has decided.
_RESOLVED: Final = ("dependencies", "constraints", "prefer", "overrides", "index", "on_top_of")


def _beside_another_lock(data: Document) -> Iterator[Found]:
    """Keys of [pip] that choose versions beside a lock that has them, and keys that select of a lock without one."""
    pip = table_of(data, "pip")
    if "from" not in pip:
        for key in SELECTED:
            if key in pip:
                problem = "selects of a lock of another tool, and no lock is named"
                yield ("pip", key), problem, 'name it: from = "uv.lock", or remove this key'
        return
    source = f'`from = "{pip["from"]}"`'
    for key in _RESOLVED:
        if pip.get(key):
            problem = f"chooses packages, and {source} has them all"
            yield ("pip", key), problem, "change it there, with the tool that wrote it, or remove `from`"
    for path in (("conda",), ("dependencies_from",), ("env", "as_of"), ("env", "package_as_of")):
        if get(data, *path):
            yield path, f"chooses packages, and {source} has them all", "remove it, or `from`"


def _cuda_without_platform(data: Document) -> Iterator[Found]:
    if isinstance(get(data, "cuda"), Mapping) and _platforms(data) == {Platform.OSX_ARM64}:
        yield (
            ("cuda",),
            "[cuda] applies to no platform: macOS has no CUDA",
            'add "linux-64" to `env.platforms`, or remove [cuda]',
        )


def _custom_base(data: Document) -> Iterator[Found]:
    image = get(data, "image")
    if not isinstance(image, Mapping):
        return
    if "base" not in image:
        for key in ("glibc", "python", "os", "packages"):
            if key in image and image[key] != "ignore":
                move = "move this key to [cuda]" if key == "os" else "remove this key"
                yield ("image", key), "describes a custom base, but there is none", f"add `base`, or {move}"
    elif "glibc" not in image and image.get("packages") != "keep" and get(data, "cuda", "os") is None:
        yield (
            ("image", "base"),
            "the base's glibc is unknown: it limits which wheels can be loaded",
            "add `glibc`, as `docker run --rm IMAGE ldd --version` prints it, or `os` to [cuda]",
        )


def _installed_on_top(data: Document) -> Iterator[Found]:
    """What is there already has a Python and packages of its own: nothing else may bring them."""
    # Many branches: one for each key that may contradict it.
    keeps = get(data, "image", "packages") == "keep"
    is_listed = get(data, "pip", "on_top_of") is not None
    if not keeps and not is_listed:
        return
    path: KeyPath = ("pip", "on_top_of")
    sources = [None, "auto"]
    if keeps:
        path = ("image", "packages")
        sources.append("base")
    if keeps and is_listed:
        yield (
            ("pip", "on_top_of"),
            "states what is installed already, and so does `image.packages`",
            "keep one of the two: an image has the packages of its base, another system those of the file",
        )
    if isinstance(get(data, "conda"), Mapping):
        yield path, "is for wheels on top of what is there, but the spec has [conda]", "remove this key or [conda]"
    source = get(data, "env", "python_source")
    if source not in sources:
        yield (
            ("env", "python_source"),
            f"`{source}`, but packages are installed on top of a Python that is there",
            f"remove this key, or {'.'.join(map(str, path))}",
        )
    if is_listed and get(data, "image", "base") is not None:
        yield path, "is no image's, but the spec has `image.base`", 'write [image] packages = "keep" instead'
    if is_listed and len(_platforms(data)) > 1:
        yield path, "lists one system's packages, but the spec is for several platforms", "leave one in env.platforms"


def _python_of_base(data: Document) -> Iterator[Found]:
    requested, in_base = get(data, "env", "python"), get(data, "image", "python")
    texts = [(0, text) for text in (requested, in_base) if isinstance(text, str)]
    are_known = len(list(readable(read_python, texts))) == 2
    if are_known and in_base != requested and not in_base.startswith(f"{requested}."):
        yield (
            ("image", "python"),
            f"the base has Python {in_base}, but `env.python` is {requested}",
            "make the two agree",
        )


def _source_of_base(data: Document) -> Iterator[Found]:
    in_base = get(data, "image", "python")
    source = get(data, "env", "python_source")
    keeps = get(data, "image", "packages") == "keep"
    if source == "base" and in_base is None and not keeps and get(data, "conda") is None:
        yield (
            ("env", "python_source"),
            "the spec does not state which Python the base has",
            'add [image] with `base` and `python = "3.11.7"`',
        )
    if source in ("standalone", "system") and in_base is not None:
        yield (
            ("env", "python_source"),
            f"`{source}`, but `image.python` states that the base has one",
            "remove one of the two keys: two Pythons in one image shadow each other",
        )


def _start(data: Document) -> Iterator[Found]:
    """What a container starts."""
    entrypoint = list_of(data, "image", "entrypoint")
    if entrypoint and table_of(data, "services"):
        yield (
            ("image", "entrypoint"),
            "[services] have an entrypoint of their own, which starts them",
            "write it as `command`, which runs next to the services, or remove [services]",
        )
    for key in ("entrypoint", "command"):
        words = list_of(data, "image", key)
        if words[:1] == [""] and not (key == "command" and entrypoint):
            yield ("image", key, 0), "an empty name of a program", "write the program: `python`"


def _ports(data: Document) -> Iterator[Found]:
    seen: dict[int, str] = {}
    for name, default in (("jupyter", 8888), ("tensorboard", 6006), ("ssh", 2222)):
        service = get(data, "services", name)
        if not isinstance(service, Mapping):
            continue
        port = service.get("port", default)
        if isinstance(port, int) and seen.setdefault(port, name) != name:
            yield (
                ("services", name, "port"),
                f"port {port} is `{seen[port]}`'s already",
                "give each service a port of its own",
            )


#: Lists in which no value stands twice, and how two ways to write one value are made the same.
_SETS: Final[tuple[tuple[tuple[str, ...], Callable[[str], str]], ...]] = (
    (("env", "platforms"), str),
    (("cuda", "gpus"), str.upper),
    (("pip", "build", "packages"), read_sdist_name),
    (("conda", "channels"), lambda text: channel_url(read_channel(text))),
    (("conda", "dependencies"), str),
    (("system", "apt"), str),
    (("conformance", "checks"), str),
)

_CHECKS: Final[tuple[Callable[[Document], Iterator[Found]], ...]] = (
    _listed_twice,
    _two_addresses,
    _overridden_twice,
    _removed,
    _misnamed,
    _keyed_twice,
    _index_names,
    _pages_of_links,
    _index_patterns,
    _beside_another_lock,
    _cuda_without_platform,
    _custom_base,
    _installed_on_top,
    _python_of_base,
    _source_of_base,
    _start,
    _ports,
    _unlisted_platforms,
    _conda_listed_twice,
    _unlisted_channels,
    _python_of_conda,
    _virtual_packages,
)
