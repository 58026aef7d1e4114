"""conda-<platform>.lock: every archive's URL and SHA-256, for micromamba, conda and rattler, without a solver.

`#sha256:` behind a URL is read by mamba and micromamba (libmamba/src/specs/package_info.cpp), by rattler
(conda/rattler#45) and by conda from 24.9 on (conda/conda#14048); an older conda refuses the file.
The form of the file is told by the draft conda/ceps#79.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from envspec.lock.canonical import canonical
from envspec.lock.depends import dependencies
from envspec.models import CondaPackage, Lock, Platform, Resolution


def explicit_name(platform: Platform) -> str:
    """The file's name in the lock's folder."""
    return f"conda-{platform.value}.lock"


def explicit_text(lock: Lock, platform: Platform) -> str:
    """The conda packages of one platform, in an order in which they can be linked.

    Raises:
        KeyError: the lock has no resolution for `platform`.
    """
    resolution = next((item for item in canonical(lock).resolutions if item.target.platform is platform), None)
    if resolution is None:
        raise KeyError(platform.value)
    lines = [f"{unexpanded(package.url)}#sha256:{package.sha256}" for package in in_link_order(resolution.conda)]
    return "\n".join((*_header(lock, resolution), *lines)) + "\n"


def unexpanded(url: str) -> str:
    """`url` so that nobody takes a part of it for an environment variable, which conda and conda-lock put in."""
    return url.replace("$", "%24")


def _header(lock: Lock, resolution: Resolution) -> Iterable[str]:
    platform = resolution.target.platform
    name = explicit_name(platform)
    yield f"# {lock.name} for {platform.value}: written by `envspec lock`. Change the spec, not this file."
    yield "# To install it:"
    yield f"#   micromamba create --prefix PREFIX --file {name}"
    yield f"#   conda create --prefix PREFIX --file {name}        (conda 24.9 or newer)"
    if resolution.packages:
        yield "# and on top of it the wheels, with its own Python:"
        yield f"#   python -m pip install --no-deps --require-hashes -r requirements.{platform.value}.txt"
    # Both conda and rattler look for this line.
    yield f"# platform: {platform.value}"
    yield "@EXPLICIT"


def in_link_order(packages: Iterable[CondaPackage]) -> tuple[CondaPackage, ...]:
    """What a package depends on comes before it, and Python before every `noarch: python` package; else by name.

    In a ring of packages that need each other one has to come before what it needs: the ring's later names.
    """
    by_name = {package.name: package for package in sorted(packages, key=lambda item: item.name)}
    needs = {name: _needs(package, by_name) for name, package in by_name.items()}
    for_python = {name for name, package in by_name.items() if package.noarch == "python"}
    order: dict[str, None] = {}
    # Python may ask for pip, which is linked by Python.
    _add("python", needs, order, without=for_python)
    for name in by_name:
        _add(name, needs, order)
    return tuple(by_name[name] for name in order)


def _needs(package: CondaPackage, by_name: Collection[str]) -> Sequence[str]:
    asked = set(dependencies(package.depends)) | ({"python"} if package.noarch == "python" else set())
    return sorted(asked.intersection(by_name) - {package.name})


def _add(
    first: str, needs: dict[str, Sequence[str]], order: dict[str, None], without: Collection[str] = frozenset()
) -> None:
    """Append `first` to `order`, after everything that it needs and that is not in it yet."""
    if first not in needs:
        return
    waiting = [(first, False)]
    begun: set[str] = set()
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            order[name] = None
        elif name not in order and name not in begun:
            begun.add(name)
            waiting.append((name, True))
            waiting += [(each, False) for each in reversed(needs[name]) if each not in without]
