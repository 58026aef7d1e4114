"""A venv, a conda prefix or another folder with a Python's site-packages. Nothing of it is executed."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from envspec.credentials import channel_without_credentials
from envspec.importers.conda_specs import add_pinned, add_platform, add_requirement, use_channel
from envspec.importers.graph import roots
from envspec.importers.site_packages import Site, read_site
from envspec.importers.toml_lines import items_of
from envspec.importers.types import Clue, Import, Outcome, Source, Unreadable
from envspec.spec.conda import name_of
from envspec.verifier.scan import CondaRecord, NoEnvironment, conda_records, find_environment


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


def read_conda(prefix: Path, records: Sequence[CondaRecord], imported: Import) -> None:
    """Add the packages of conda-meta. Required is what was requested, as conda records it; if nothing was, what no
    other package requires.
    """
    meta = prefix / "conda-meta"
    for record in records:
        if record.problem:
            source = Source(imported.shown(meta / record.file))
            imported.add(source, record.file, Outcome.NOT_UNDERSTOOD, f"it can't be read: {record.problem}")
    whole = [record for record in records if not record.problem]
    _add_channels_and_platform(whole, Source(imported.shown(meta)), imported)
    requested = _requested(meta, whole, imported)
    if not requested:
        graph: dict[str, set[str]] = {}
        for record in whole:
            graph[record.name] = {each.split(" ", 1)[0].lower() for each in record.depends}
        requested = {name: (name,) for name in roots(graph)}
    for record in whole:
        source = Source(imported.shown(meta / record.file))
        reason = add_pinned(imported, record.name, record.version, record.build, source)
        if record.name == "python":
            reason = f"[env] python, {reason}"
        elif record.name in requested:
            reason = f"{_require(imported, source, requested[record.name])}, {reason}"
        imported.add(source, f"{record.name} {record.version} {record.build}", Outcome.TRANSLATED, reason)


def _add_channels_and_platform(records: Sequence[CondaRecord], source: Source, imported: Import) -> None:
    counted = Counter(channel_without_credentials(record.channel) for record in records if record.channel)
    for channel, count in counted.most_common():
        reason = f"of {count} packages"
        if len(counted) > 1:
            reason += "; the order of channels is not recorded: that with the most packages is the first"
        used = use_channel(imported, channel)
        imported.add(source, f"channel {channel}", Outcome.TRANSLATED, f"`{used}`, {reason}")
    for platform in dict.fromkeys(record.subdir for record in records):
        if platform not in ("", "noarch"):
            add_platform(imported, source, platform)


def _require(imported: Import, source: Source, specs: Sequence[str]) -> str:
    """Add what was requested of one package, without entries of its own. Returns it in words."""
    before, ledger = len(imported.draft.conda), imported.ledger
    imported.ledger = []
    for spec in specs:
        add_requirement(imported, source, spec)
    refused = [entry.text for entry in imported.ledger if entry.outcome.is_lost]
    imported.ledger = ledger
    added = [text for text, _ in imported.draft.conda[before:]]
    if refused and not added:
        name = name_of(refused[0])
        imported.draft.conda.append((name, ""))
        return f"`{name}` for the requested `{refused[0]}`, which a spec can't have"
    return f"`{'`, `'.join(added or specs)}`"


def _requested(meta: Path, records: Sequence[CondaRecord], imported: Import) -> dict[str, tuple[str, ...]]:
    """Package -> what was requested of it; empty if nothing says so.

    A tool that installs a list of URLs records each of them as requested: that says nothing.
    """
    own = {record.name: _meant(record.requested) for record in records if record.requested}
    if len(own) == len(records):
        own = {}
    names = {record.name for record in records}
    for spec in _history(meta / "history", imported):
        try:
            name = name_of(spec)
        except ValueError:
            continue
        if name in names:
            own.setdefault(name, _meant((spec,)))
    return own if own.keys() - {"python"} else {}


def _meant(specs: Sequence[str]) -> tuple[str, ...]:
    """What was requested; of an exact build or a URL, the name."""
    found = []
    for spec in specs:
        try:
            bare = spec.rpartition("::")[2]
            if re.search(r"=[^=]*=[^=]|://|\[", bare):
                found.append(name_of(bare))
            else:
                found.append(spec)
        except ValueError:
            continue
    return tuple(dict.fromkeys(found))


def _history(path: Path, imported: Import) -> Iterator[str]:
    """The specs in conda-meta/history that are still in force. Source: conda's `History.get_requested_specs_map`."""
    if not path.is_file():
        return
    specs: dict[str, str] = {}
    for line in imported.read(path).splitlines():
        found = re.match(r"#\s*(create|install|update|remove|uninstall|neutered)\s+specs:\s*(\[.*\])\s*$", line)
        if found is None:
            continue
        for spec in _texts_in(found[2]):
            try:
                name = name_of(spec.rpartition("::")[2])
            except ValueError:
                continue
            if found[1] in ("remove", "uninstall"):
                specs.pop(name, None)
            else:
                specs[name] = spec
    yield from specs.values()


def _texts_in(text: str) -> list[str]:
    """A list of texts as Python writes it, which is not executed."""
    if len(text) > 1 << 20:
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return [each for each in items_of(value) if isinstance(each, str)]
