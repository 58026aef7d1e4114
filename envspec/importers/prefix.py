"""A venv, a conda prefix or another folder with a Python's site-packages. Nothing of it is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from envspec.importers.conda_prefix import read_conda
from envspec.importers.site_packages import Site, read_site
from envspec.importers.types import Clue, Import, Outcome, Source, Unreadable
from envspec.verifier.scan import NoEnvironment, conda_records, find_environment


def is_environment(path: Path) -> bool:
    """Whether a folder has a Python's site-packages or conda's packages."""
    try:
        find_environment(path)
    except NoEnvironment:
        return any(conda_records(path))
    return True


def read_prefix(path: Path, imported: Import) -> None:
    """What is installed in a folder: all versions are preferred. Required is what was requested, as pip and conda
    record it; where they do not, what nothing else requires.

    Raises:
        Unreadable: it has no site-packages and no conda packages.
    """
    records = [*conda_records(path)]
    sites: tuple[Path, ...] = ()
    try:
        environment = find_environment(path)
        # Named as the user did, behind whatever links.
        sites = tuple(path / environment.relative(site) for site in environment.sites)
    except NoEnvironment as error:
        if not records:
            raise Unreadable(f"{imported.shown(path)} is not an environment: {error}") from None
    if records:
        read_conda(path, records, imported)
    config = _config(path, imported)
    python = next((record.version for record in records if record.name == "python"), "")
    if not python:
        python = _python(path, sites, config, imported)
    for site in sites[:-1]:
        reason = f"of another Python: {sites[-1].parent.name} is read"
        imported.add(Source(imported.shown(site)), site.parent.name, Outcome.REFUSED, reason)
    for site in sites[-1:]:
        owned = frozenset(path for record in records for path in record.paths)
        read_site(Site(path, site, python, _seeds(python, config), owned), imported)


def _config(prefix: Path, imported: Import) -> dict[str, str]:
    """pyvenv.cfg; empty if there is none."""
    path = prefix / "pyvenv.cfg"
    config: dict[str, str] = {}
    if path.is_file():
        for line in imported.read(path).splitlines():
            key, _, value = line.partition("=")
            config[key.strip().lower()] = value.strip()
    return config


def _seeds(python: str, config: Mapping[str, str]) -> frozenset[str]:
    """What the tool that made the environment installed by itself.

    Source: ensurepip and virtualenv have no setuptools for Python 3.12 and newer; wheel is of virtualenv, `uv venv
    --seed` and Docker's images of Python.
    """
    numbers = re.match(r"3\.(\d+)", python)
    if numbers and int(numbers[1]) >= 12:
        return frozenset({"pip"})
    if config and not {"virtualenv", "seed"} & config.keys():
        return frozenset({"pip", "setuptools"})
    return frozenset({"pip", "setuptools", "wheel"})


def _python(prefix: Path, sites: tuple[Path, ...], config: Mapping[str, str], imported: Import) -> str:
    """The version of a Python that is not conda's: of pyvenv.cfg, else the series in the path of its site-packages."""
    source = Source(imported.shown(prefix / "pyvenv.cfg"))
    if config.get("include-system-site-packages", "").lower() == "true":
        reason = f"packages of the Python in {config.get('home', 'another folder')} are not read: name them"
        imported.add(source, "include-system-site-packages = true", Outcome.REFUSED, reason)
    # `version_info`: of uv, and of virtualenv, which writes 3.11.7.final.0.
    for key in ("version", "version_info"):
        if found := re.match(r"3\.\d+(?:\.\d+)?", config.get(key, "")):
            imported.draft.pythons.append(Clue(found[0], source, "the environment's Python"))
            imported.add(source, f"{key} = {config[key]}", Outcome.TRANSLATED, f"[env] python: {found[0]}")
            return found[0]
    for site in sites[-1:]:
        if found := re.fullmatch(r"python(3\.\d+)t?", site.parent.name):
            source = Source(imported.shown(site))
            imported.draft.pythons.append(Clue(found[1], source, "the Python of its site-packages"))
            imported.add(source, site.parent.name, Outcome.TRANSLATED, f"[env] python: {found[1]}")
            return found[1]
    return ""
