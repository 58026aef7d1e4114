"""requirements.<platform>.txt: the pins in pip-tools' format, for pip, pip-sync and uv, without envspec."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from envspec.credentials import without_credentials
from envspec.lockfile.export.conda import explicit_name, lines_text
from envspec.models import DEFAULT_INDEX, GIT, LOCAL, Lock, Package, Platform, Resolution

#: Every character that is not quoted in a URL. `$` is not among them: pip and uv replace `${NAME}` in requirement
#: files by the environment's variable. `%` is, since what is quoted already stays so.
_IN_URLS: Final = "%/:=&?~#+!,;'@()*[]"


def files(lock: Lock) -> dict[str, str]:
    """A file for every platform; none if conda packages are all that the lock has."""
    if any(each.conda for each in lock.resolutions) and not any(each.packages for each in lock.resolutions):
        return {}
    texts = {}
    for part in lock.resolutions:
        texts[requirements_name(part.target.platform)] = requirements_text(lock.name, part)
    return texts


def requirements_name(platform: Platform) -> str:
    """The file's name in the lock's folder."""
    return f"requirements.{platform.value}.txt"


def requirements_text(name: str, part: Resolution) -> str:
    """Every pin of one platform, each with the one SHA-256 that is locked for it and what requires it.

    A package of the default index is `name==version`; one of a named index or of a direct URL is `name @ url`: with its
    index in the file (`--extra-index-url`) every other name could come from there too. A git or local project is the
    wheel that was built from it: pip has no hash of a repository or a folder.

    name: of the lock.
    """
    packages = sorted(part.packages, key=lambda package: package.name)
    return _header(name, part) + "".join(map(_pin, packages))


def _header(of: str, resolution: Resolution) -> str:
    platform, python = resolution.target.platform, resolution.target.python
    name = requirements_name(platform)
    where = "into an environment of that Python"
    if resolution.conda:
        where = f"on top of {explicit_name(platform)}"
    # On top of conda the pins are what conda does not provide: pip must not look for the rest, and a sync would remove
    # conda's own packages. pip refuses what a package's own metadata excludes, and the spec overrides.
    no_deps = "--no-deps " if is_overridden(resolution) or python.source == "conda" else ""
    commands = [f"pip install {no_deps}--require-hashes -r {name}"]
    if python.source != "conda":
        commands.append(f"uv pip sync --require-hashes {name}")
    text = (
        f"# {of} for {platform.value}, Python {python.version}: written by `envspec lock`.\n"
        f"# Edit the spec, not this file. To install it {where}:\n"
    )
    return text + lines_text(commands, "#   ")


def _pin(package: Package) -> str:
    file = package.file
    if file.index in {GIT, LOCAL}:
        return _built(package)
    return f"{pin(package)} \\\n    --hash=sha256:{file.sha256}\n{_via(package)}"


def pin(package: Package) -> str:
    """The requirement of one file of an index, or at a URL."""
    url = package.file.url
    if package.file.index == DEFAULT_INDEX or url is None:
        return f"{package.name}=={package.version}"
    return f"{package.name} @ {public_url(url)}"


def public_url(url: str) -> str:
    """A URL without credentials, in which no reader replaces or splits anything."""
    return quote(without_credentials(url), safe=_IN_URLS)


def is_overridden(resolution: Resolution) -> bool:
    """Whether the metadata of some packages excludes what is locked beside them, and the spec overrides it."""
    return any(package.removed or is_excluded(package) for package in resolution.packages)


def is_excluded(package: Package) -> bool:
    """Whether the metadata of a package that requires it excludes what is locked, and the spec overrides it."""
    return any(by.replaces for by in package.required_by)


def _built(package: Package) -> str:
    file = package.file
    source = without_credentials(file.url or "").partition("#sha256=")[0]
    return (
        f"# {file.filename}, built from {source}:\n"
        f"# pass its folder to pip or uv by --find-links; in envspec's cache it is\n"
        f"# archives/{file.sha256}/{file.filename}\n"
        f"{package.name}=={package.version} \\\n    --hash=sha256:{file.sha256}\n{_via(package)}"
    )


def _via(package: Package) -> str:
    names = sorted({dependent.name for dependent in package.required_by})
    if len(names) > 1:
        return "    # via\n" + lines_text(names, "    #   ")
    return lines_text(names, "    # via ")
