"""requirements.<platform>.txt: the pins in pip-tools' form, for pip, pip-sync and uv, without envspec."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from envspec.credentials import without_credentials
from envspec.lock.explicit import explicit_name
from envspec.models import DEFAULT_INDEX, GIT, LOCAL, Lock, Package, Platform, Resolution

#: Every character that may stand in a URL as it is. `$` is not among them: pip and uv replace `${NAME}` in requirement
#: files by the environment's variable. `%` is, since what is quoted already stays so.
_IN_URLS: Final = "%/:=&?~#+!,;'@()*[]"


def requirements_name(platform: Platform) -> str:
    """The file's name in the lock's folder."""
    return f"requirements.{platform.value}.txt"


def requirements_text(lock: Lock, platform: Platform) -> str:
    """Every pin of one platform, each with the one SHA-256 that is locked for it and who asked for it.

    A package of the default index is `name==version`; one of a named index or of a direct URL is `name @ url`, for with
    its index in the file (`--extra-index-url`) every other name could be taken from there too. What was built of a git
    or local project is the wheel that was built: pip has no hash of a repository or a folder.

    Raises:
        KeyError: the lock has no resolution for `platform`.
    """
    resolution = next((item for item in lock.resolutions if item.target.platform is platform), None)
    if resolution is None:
        raise KeyError(platform.value)
    packages = sorted(resolution.packages, key=lambda package: package.name)
    return _header(lock, resolution) + "".join(map(_pin, packages))


def _header(lock: Lock, resolution: Resolution) -> str:
    platform, python = resolution.target.platform, resolution.target.python
    name = requirements_name(platform)
    where = f"on top of {explicit_name(platform)}" if resolution.conda else "into an environment of that Python"
    # On top of conda the pins are what conda does not provide: pip must not look for the rest, and a sync would remove
    # conda's own packages.
    ways = (
        [f"pip install --no-deps --require-hashes -r {name}"]
        if python.source == "conda"
        else [f"pip install --require-hashes -r {name}", f"uv pip sync --require-hashes {name}"]
    )
    return (
        f"# {lock.name} for {platform.value}, Python {python.version}: written by `envspec lock`.\n"
        f"# Change the spec, not this file. To install it {where}:\n"
    ) + "".join(f"#   {way}\n" for way in ways)


def _pin(package: Package) -> str:
    file = package.file
    if file.index in {GIT, LOCAL}:
        return _built(package)
    pin = (
        f"{package.name}=={package.version}"
        if file.index == DEFAULT_INDEX or file.url is None
        else f"{package.name} @ {quote(without_credentials(file.url), safe=_IN_URLS)}"
    )
    return f"{pin} \\\n    --hash=sha256:{file.sha256}\n{_via(package)}"


def _built(package: Package) -> str:
    file = package.file
    source = without_credentials(file.url or "").partition("#sha256=")[0]
    return (
        f"# {file.filename}, built of {source}:\n"
        f"# whoever has it gives it to pip or uv by --find-links; an envspec cache has it as\n"
        f"# archives/{file.sha256}/{file.filename}\n"
        f"{package.name}=={package.version} \\\n    --hash=sha256:{file.sha256}\n{_via(package)}"
    )


def _via(package: Package) -> str:
    askers = sorted({asker.name for asker in package.askers})
    if not askers:
        return ""
    if len(askers) == 1:
        return f"    # via {askers[0]}\n"
    return "    # via\n" + "".join(f"    #   {asker}\n" for asker in askers)
