"""[tool.uv] of a pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from envspec.importers.pip import Use, Verdict, add_cuda, add_index, cuda_of
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.python_locks import PYTHONS, holds
from envspec.importers.toml_lines import list_of, table_of, text_of
from envspec.importers.types import Clue, Outcome, Source
from envspec.lockfile.toml_writer import time_text
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.dates import Age, read_as_of
from envspec.spec.errors import KeyPath


def read_uv(project: Project) -> None:
    """Read what uv adds to the project, after its requirements."""
    uv = project.file.table("tool", "uv")
    for at, text in enumerate(list_of(uv, "dev-dependencies")):
        path = ("tool", "uv", "dev-dependencies", at)
        if "dev" in project.groups:
            project.requirement(text, path, group="dev")
        else:
            project.note(path, text, not_included("group", "dev"))
    for at, text in enumerate(list_of(uv, "constraint-dependencies")):
        project.requirement(text, ("tool", "uv", "constraint-dependencies", at), use=Use.CONSTRAINTS)
    for at, text in enumerate(list_of(uv, "override-dependencies")):
        project.override(text, ("tool", "uv", "override-dependencies", at), "override-dependencies of uv")
    _sources(project, table_of(uv, "sources"))
    for key in ("environments", "required-environments"):
        listed = uv.get(key, [])
        for at, text in enumerate([listed] if isinstance(listed, str) else listed if isinstance(listed, list) else ()):
            _platforms(project, text, ("tool", "uv", key, at) if isinstance(listed, list) else ("tool", "uv", key))
    for key, value in uv.items():
        if key not in _READ:
            project.add(("tool", "uv", key), f"{key} = {written_value(value)}", _key(project, key, value))


def _key(project: Project, key: str, value: Any) -> Verdict:
    by = project.file.at("tool", "uv", key)
    if key in ("index-url", "extra-index-url", "find-links", "default-index"):
        is_links, is_default = key == "find-links", key in ("index-url", "default-index")
        urls = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
        return _joined(add_index(url, by, project.imported, is_links=is_links, is_default=is_default) for url in urls)
    if key == "exclude-newer" and isinstance(value, str):
        return _exclude_newer(project, value, by)
    if key in ("no-binary-package", "no-build-isolation-package") and isinstance(value, list):
        project.imported.draft.allow_sdist += [each for each in value if isinstance(each, str)]
        return Verdict(Outcome.TRANSLATED, "[pip] allow_sdist: built if a release has no wheel")
    backend = value if key == "torch-backend" else table_of(value).get("torch-backend")
    if isinstance(backend, str) and (cuda := cuda_of(backend)):
        add_cuda(cuda, by, project.imported, "torch-backend of uv")
        return Verdict(Outcome.TRANSLATED, f"[cuda] version = {cuda}")
    if key == "default-groups":
        listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return Verdict(Outcome.TRANSLATED, f"included with --group {listed}")
    return _KEYS.get(key, Verdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of uv that is read"))


def _exclude_newer(project: Project, value: str, by: Source) -> Verdict:
    # A date includes its day: of 2026-01-05, uv 0.13.8 writes 2026-01-06T00:00:00Z into uv.lock.
    is_date = re.fullmatch(r"\d{4}-\d\d-\d\d", value)
    try:
        bound = read_as_of(f"{value} ago" if re.fullmatch(r"\d+ [a-z]+", value) else value)
        time = str(bound) if isinstance(bound, Age) else time_text(bound + timedelta(days=bool(is_date)))
    except (ValueError, OverflowError):
        return Verdict(Outcome.NOT_UNDERSTOOD, "it is neither a time nor an age such as 7 days")
    project.imported.draft.as_ofs.append(Clue(time, by, "exclude-newer of uv"))
    return Verdict(Outcome.TRANSLATED, f"[env] as_of = {time}")


def _platforms(project: Project, text: object, path: KeyPath) -> None:
    """The platforms on which a marker of `environments` can hold."""
    found = [each.value for each in Platform if any(holds(str(text), each, python) for python in PYTHONS)]
    draft = project.imported.draft
    draft.platforms += [Clue(each, project.file.at(*path), str(path[2])) for each in found]
    verdict = (
        Verdict(Outcome.TRANSLATED, f"[env] platforms: {', '.join(found)}")
        if found
        else Verdict(Outcome.REFUSED, "it matches none of the platforms that a spec can have")
    )
    project.add(path, str(text), verdict)


def _sources(project: Project, sources: Mapping[str, Any]) -> None:
    """Entries for sources and indexes: requirements have added what they took."""
    by_index: dict[str, list[str]] = {}
    for name, value in sources.items():
        several = isinstance(value, list)
        for at, source in enumerate(value if isinstance(value, list) else [value]):
            path: KeyPath = ("tool", "uv", "sources", name, *((at,) if several else ()))
            used = source in project.used.get(normalised(name), [])
            if used and text_of(source, "index"):
                by_index.setdefault(text_of(source, "index"), []).append(name)
            project.note(path, f"{name} = {written_value(source)}", _source_reason(project, name, source, used=used))
    for at, index in enumerate(list_of(project.file.data, "tool", "uv", "index")):
        path = ("tool", "uv", "index", at)
        name, url = text_of(index, "name"), text_of(index, "url")
        verdict = project.index(
            index,
            path,
            by_index.get(name, ()),
            is_explicit=table_of(index).get("explicit") is True,
            is_links=text_of(index, "format") == "flat",
            is_default=table_of(index).get("default") is True,
        )
        project.add(path, f"[[tool.uv.index]] {name} {url}", verdict)


def _source_reason(project: Project, name: str, source: Any, *, used: bool) -> str:
    if used:
        return f"{name} comes from there"
    for kind, taken in (("extra", project.extras), ("group", project.groups)):
        if (key := text_of(source, kind)) and normalised(key) not in taken:
            return not_included(kind, key)
    if normalised(name) in project.used:
        return "not for linux-64, for which the first source with a matching marker is used"
    return f"no included requirement names {name}"


def _joined(verdicts: Iterator[Verdict]) -> Verdict:
    """One verdict for a line with several values: the worst, and all reasons."""
    found = list(verdicts) or [Verdict(Outcome.NOT_UNDERSTOOD, "it has no value that can be read")]
    worst = next((each.outcome for each in found if each.outcome.is_lost), found[0].outcome)
    return Verdict(worst, "; ".join(dict.fromkeys(each.reason for each in found if each.reason)))


#: Keys of [tool.uv] that have entries of their own.
_READ: Final = (
    "dev-dependencies",
    "constraint-dependencies",
    "override-dependencies",
    "sources",
    "index",
    "environments",
    "required-environments",
)
_NO_EFFECT: Final = Verdict(Outcome.TRANSLATED, "a setting of uv's own, which does not decide what is installed")
_BUILDS: Final = Verdict(Outcome.REFUSED, "what a package's build imports is [build.NAME] requires")
#: Source: uv's documentation, "Settings" (uv 0.9).
_KEYS: Final = {
    **dict.fromkeys(
        (
            *("package", "managed", "workspace", "cache-keys", "cache-dir", "build-backend"),
            *("required-version", "link-mode", "compile-bytecode", "preview", "native-tls", "offline"),
            *("no-cache", "python-downloads", "python-preference", "concurrent-builds"),
            *("concurrent-downloads", "concurrent-installs", "publish-url", "check-url"),
            *("trusted-publishing", "reinstall", "reinstall-package", "upgrade", "upgrade-package"),
            *("keyring-provider", "http-proxy", "https-proxy", "no-proxy", "add-bounds", "pip"),
            *("index-strategy", "fork-strategy"),
        ),
        _NO_EFFECT,
    ),
    "conflicts": Verdict(Outcome.TRANSLATED, "an environment has one of them; [variants] has the others"),
    "prerelease": Verdict(Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    "resolution": Verdict(Outcome.REFUSED, "the newest versions are locked, or the preferred ones"),
    "no-build": Verdict(Outcome.REFUSED, 'write sdists = "none" in [pip]'),
    "no-binary": Verdict(Outcome.REFUSED, "a wheel is built only if a release has none: name the packages"),
    "no-index": Verdict(Outcome.REFUSED, "an index is always read: ENVSPEC_DEFAULT_INDEX names another default one"),
    "no-build-package": Verdict(Outcome.TRANSLATED, "only sdists without compiled code are built, when locking"),
    "no-build-isolation": _BUILDS,
    "extra-build-dependencies": _BUILDS,
    "build-constraint-dependencies": _BUILDS,
    "extra-build-variables": Verdict(Outcome.REFUSED, "the variables of a package's build are [build.NAME] env"),
    "config-settings": _BUILDS,
    "config-settings-package": _BUILDS,
    "dependency-metadata": Verdict(Outcome.REFUSED, "[pip] overrides replace what a package requires"),
    "exclude-newer-package": Verdict(Outcome.REFUSED, "later dates of single packages are [env] package_as_of"),
    "allow-insecure-host": Verdict(Outcome.REFUSED, "certificates are those of this machine (SSL_CERT_FILE)"),
    "torch-backend": Verdict(Outcome.REFUSED, "write [cuda] version"),
}
