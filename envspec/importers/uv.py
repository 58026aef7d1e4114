"""[tool.uv] of a pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.importers.pip import Use, Verdict, add_cuda, add_index, cuda_of
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.python_locks import PYTHONS, holds
from envspec.importers.toml_lines import text_of
from envspec.importers.types import Clue, Outcome, Source
from envspec.importers.unsupported import note_unsupported
from envspec.lockfile.toml_writer import time_text
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.dates import Age, read_as_of
from envspec.spec.errors import KeyPath


def read_environments(project: Project) -> None:
    """Read the platforms of the project, on which its requirements depend."""
    listed = project.file.table("tool", "uv").get("environments", [])
    path: KeyPath = ("tool", "uv", "environments")
    for at, text in enumerate([listed] if isinstance(listed, str) else listed if isinstance(listed, list) else ()):
        _platforms(project, text, (*path, at) if isinstance(listed, list) else path)


def check_conflicts(project: Project) -> None:
    """Refuse extras and groups that exclude each other.

    Raises:
        UsageError: two of one set are taken.
    """
    for at, items in enumerate(list_of(project.file.data, "tool", "uv", "conflicts")):
        taken: list[str] = []
        for item in items if isinstance(items, list) else ():
            is_own = normalised(text_of(item, "package") or project.name) == project.name
            for kind, names in (("extra", project.extras), ("group", project.groups)):
                if is_own and (name := text_of(item, kind)) and normalised(name) in names:
                    taken.append(f"{kind} {name}")
        if len(taken) > 1:
            where = project.file.at("tool", "uv", "conflicts", at)
            raise UsageError(
                f"{where}: {' and '.join(taken)} exclude each other ([tool.uv] conflicts)",
                hint="name one of them; `[variants]` of the spec has an environment for each",
            )


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
    for at, name in enumerate(list_of(uv, "exclude-dependencies")):
        # As an override that applies nowhere.
        path = ("tool", "uv", "exclude-dependencies", at)
        project.override(f"{name} ; python_version < '3'", path, "exclude-dependencies of uv")
    read_sources(project)
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
    if key == "exclude-newer-package" and isinstance(value, Mapping):
        return _exclude_newer_package(project, value)
    if key in ("no-binary-package", "no-build-isolation-package") and isinstance(value, list):
        project.imported.draft.build_packages += [each for each in value if isinstance(each, str)]
        return Verdict(Outcome.TRANSLATED, "[pip.build] packages: built if a release has no wheel")
    backend = value if key == "torch-backend" else table_of(value).get("torch-backend")
    if isinstance(backend, str):
        return _backend(project, backend, by)
    if key == "default-groups":
        listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        return Verdict(Outcome.TRANSLATED, f"included with --group {listed}")
    return _KEYS.get(key, Verdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of uv that is read"))


def _backend(project: Project, backend: str, by: Source) -> Verdict:
    """`torch-backend`, also of [tool.uv.pip]."""
    if cuda := cuda_of(backend):
        add_cuda(cuda, by, project.imported, "torch-backend of uv")
        return Verdict(Outcome.TRANSLATED, f"[cuda] version = {cuda}")
    note_unsupported(project.imported, f"/{backend}", by)
    return Verdict(Outcome.REFUSED, "write [cuda] version")


def _exclude_newer(project: Project, value: str, by: Source) -> Verdict:
    if not (time := _time(value)):
        return Verdict(Outcome.NOT_UNDERSTOOD, _NO_TIME)
    project.imported.draft.as_ofs.append(Clue(time, by, "exclude-newer of uv"))
    return Verdict(Outcome.TRANSLATED, f"[env] as_of = {time}")


def _exclude_newer_package(project: Project, value: Mapping[str, Any]) -> Verdict:
    verdicts = []
    for name, each in value.items():
        # `false`: no bound, which is an age of zero.
        if time := "0 days ago" if each is False else _time(each) if isinstance(each, str) else "":
            project.imported.draft.package_as_ofs[normalised(name)] = time
            verdicts.append(Verdict(Outcome.TRANSLATED, f"[env] package_as_of: {normalised(name)} = {time}"))
        else:
            verdicts.append(Verdict(Outcome.NOT_UNDERSTOOD, f"{name}: {_NO_TIME}"))
    return _joined(iter(verdicts))


_NO_TIME: Final = "it is neither a time nor an age such as 7 days"


def _time(value: str) -> str:
    """A time or an age of uv as [env] as_of has it; empty if it is neither."""
    # A date includes its day: of 2026-01-05, uv 0.13.8 writes 2026-01-06T00:00:00Z into uv.lock.
    is_date = re.fullmatch(r"\d{4}-\d\d-\d\d", value)
    try:
        bound = read_as_of(f"{value} ago" if re.fullmatch(r"\d+ [a-z]+", value) else value)
        return str(bound) if isinstance(bound, Age) else time_text(bound + timedelta(days=bool(is_date)))
    except (ValueError, OverflowError):
        return ""


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


def read_sources(project: Project) -> None:
    """Entries for sources and indexes: requirements have added what they took."""
    for name, value in project.file.table("tool", "uv", "sources").items():
        several = isinstance(value, list)
        for at, source in enumerate(value if isinstance(value, list) else [value]):
            path: KeyPath = ("tool", "uv", "sources", name, *((at,) if several else ()))
            written, is_used = f"{name} = {written_value(source)}", _is_used(project, name, source)
            project.note(path, written, _source_reason(project, name, source, is_used=is_used))
            if is_used and text_of(source, "git") and not _lock_of(project).is_file():
                reason = f"if {name} has [tool.uv.sources] of its own, they are not read: add its indexes to the spec"
                project.add(path, written, Verdict(Outcome.REFUSED, reason))
    own = list_of(project.file.data, "tool", "uv", "index")
    known = {text_of(index, "name") for index in own}
    for name, sources in project.used.items():
        for index in filter(None, (text_of(source, "index") for source in sources)):
            owner = project if index in known or project.workspace is None else project.workspace
            owner.indexes.setdefault(index, []).append(name)
    for at, index in enumerate(own):
        path = ("tool", "uv", "index", at)
        name, url = text_of(index, "name"), text_of(index, "url")
        verdict = project.index(
            index,
            path,
            project.indexes.get(name, ()),
            # uv reads those of a member, or of a local project, only for its sources.
            is_explicit=table_of(index).get("explicit") is True or project.is_required,
            is_links=text_of(index, "format") == "flat",
            is_default=table_of(index).get("default") is True,
        )
        project.add(path, f"[[tool.uv.index]] {name} {url}", verdict)


def _lock_of(project: Project) -> Path:
    return (project.workspace or project).file.path.with_name("uv.lock")


def _is_used(project: Project, name: str, source: Any) -> bool:
    return any(each is source for each in project.used.get(normalised(name), []))


def _source_reason(project: Project, name: str, source: Any, *, is_used: bool) -> str:
    if is_used:
        return f"{name} comes from there"
    for kind, taken in (("extra", project.extras), ("group", project.groups)):
        if (key := text_of(source, kind)) and normalised(key) not in taken:
            return not_included(kind, key)
    if normalised(name) in project.used:
        here = ", ".join(project.platforms)
        is_here = any(project.holds_on(text_of(source, "marker"), each) for each in project.platforms)
        return "a spec has one index for a package: that of its first platform" if is_here else f"not for {here}"
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
    "exclude-dependencies",
    "sources",
    "index",
    "environments",
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
    "required-environments": Verdict(
        Outcome.TRANSLATED, "it restricts nothing: [env] platforms are those that a lock is for"
    ),
    "prerelease": Verdict(Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    "resolution": Verdict(Outcome.REFUSED, "the newest versions are locked, or the preferred ones"),
    "no-build": Verdict(Outcome.REFUSED, "write pure = false in [pip.build]"),
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
    "allow-insecure-host": Verdict(Outcome.REFUSED, "certificates are those of this machine (SSL_CERT_FILE)"),
}
