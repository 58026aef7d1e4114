"""[tool.uv] of a pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from envspec.documents import list_of, table_of
from envspec.errors import UsageError
from envspec.importers.pip import LineVerdict, Use, add_index, torch_backend
from envspec.importers.project import Project, not_included, written_value
from envspec.importers.python_locks import PYTHONS, holds
from envspec.importers.toml_lines import items_of, several_of, text_of, texts_of
from envspec.importers.types import Clue, Outcome, Source
from envspec.models import Platform
from envspec.names import normalised
from envspec.spec.dates import Age, read_as_of, time_text
from envspec.spec.errors import KeyPath


def read_environments(project: Project) -> None:
    """Read the platforms of the project, on which its requirements depend."""
    listed = project.file.table("tool", "uv").get("environments")
    path: KeyPath = ("tool", "uv", "environments")
    if isinstance(listed, str):
        _read_platforms(project, listed, path)
    for at, text in enumerate(items_of(listed)):
        _read_platforms(project, text, (*path, at))


def check_conflicts(project: Project) -> None:
    """Refuse extras and groups that exclude each other.

    Raises:
        UsageError: two of one set are taken.
    """
    for at, items in enumerate(list_of(project.file.data, "tool", "uv", "conflicts")):
        taken: list[str] = []
        for item in items_of(items):
            if normalised(text_of(item, "package") or project.name) != project.name:
                continue
            for kind, names in (("extra", project.extras), ("group", project.groups)):
                name = text_of(item, kind)
                if name and normalised(name) in names:
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
            project.add(("tool", "uv", key), f"{key} = {written_value(value)}", _read_key(project, key, value))


def _read_key(project: Project, key: str, value: Any) -> LineVerdict:
    by = project.file.at("tool", "uv", key)
    if key in ("index-url", "extra-index-url", "find-links", "default-index"):
        is_links, is_default = key == "find-links", key in ("index-url", "default-index")
        verdicts = []
        for url in several_of(value):
            if isinstance(url, str):
                verdicts.append(add_index(url, by, project.imported, is_links=is_links, is_default=is_default))
        return _joined(verdicts)
    if key == "exclude-newer" and isinstance(value, str):
        return _exclude_newer(project, value, by)
    if key == "exclude-newer-package" and isinstance(value, Mapping):
        return _exclude_newer_package(project, value)
    if key in BUILT and isinstance(value, list):
        project.imported.draft.build_packages += texts_of(project.file.table("tool", "uv"), key)
        return LineVerdict(Outcome.TRANSLATED, "[pip.build] packages: built if a release has no wheel")
    backend = value if key == "torch-backend" else table_of(value).get("torch-backend")
    if isinstance(backend, str):
        return torch_backend(backend, by, project.imported)
    if key == "default-groups":
        listed = ", ".join(map(str, several_of(value)))
        return LineVerdict(Outcome.TRANSLATED, f"included with --group {listed}")
    return _KEYS.get(key, LineVerdict(Outcome.NOT_UNDERSTOOD, "it is not a setting of uv that is read"))


def has_no_effect(key: str) -> bool:
    """Whether a key of [tool.uv] does not decide what is installed."""
    return _KEYS.get(key) is NO_EFFECT


def _exclude_newer(project: Project, value: str, by: Source) -> LineVerdict:
    if not (time := _time(value)):
        return LineVerdict(Outcome.NOT_UNDERSTOOD, _NO_TIME)
    project.imported.draft.as_ofs.append(Clue(time, by, "exclude-newer of uv"))
    return LineVerdict(Outcome.TRANSLATED, f"[env] as_of = {time}")


def _exclude_newer_package(project: Project, value: Mapping[str, Any]) -> LineVerdict:
    verdicts = []
    for name, each in value.items():
        time = ""
        if each is False:
            # No bound, which is an age of zero.
            time = "0 days ago"
        elif isinstance(each, str):
            time = _time(each)
        if time:
            project.imported.draft.package_as_ofs[normalised(name)] = time
            verdicts.append(LineVerdict(Outcome.TRANSLATED, f"[env] package_as_of: {normalised(name)} = {time}"))
        else:
            verdicts.append(LineVerdict(Outcome.NOT_UNDERSTOOD, f"{name}: {_NO_TIME}"))
    return _joined(verdicts)


_NO_TIME: Final = "it is neither a time nor an age such as 7 days"


def _time(value: str) -> str:
    """A time or an age of uv as [env] as_of has it; empty if it is neither."""
    # A date includes its day: of 2026-01-05, uv 0.13.8 writes 2026-01-06T00:00:00Z into uv.lock.
    days = 1 if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else 0
    try:
        bound = read_as_of(re.sub(r"^\d+ [a-z]+$", r"\g<0> ago", value))
        return str(bound) if isinstance(bound, Age) else time_text(bound + timedelta(days=days))
    except (ValueError, OverflowError):
        return ""


def _read_platforms(project: Project, text: object, path: KeyPath) -> None:
    """The platforms on which a marker of `environments` can hold."""
    found: list[str] = []
    for platform in Platform:
        if any(holds(str(text), platform, python) for python in PYTHONS):
            found.append(platform.value)
            project.imported.draft.platforms.append(Clue(platform.value, project.file.at(*path), str(path[2])))
    verdict = LineVerdict(Outcome.TRANSLATED, f"[env] platforms: {', '.join(found)}")
    if not found:
        verdict = LineVerdict(Outcome.REFUSED, "it matches none of the platforms that a spec can have")
    project.add(path, str(text), verdict)


def read_sources(project: Project) -> None:
    """Entries for sources and indexes: requirements have added what they took."""
    for name, value in project.file.table("tool", "uv", "sources").items():
        for at, source in enumerate(several_of(value)):
            path: KeyPath = ("tool", "uv", "sources", name, at)
            written = f"{name} = {written_value(source)}"
            is_used = any(each is source for each in project.used.get(normalised(name), []))
            project.note(path, written, _source_reason(project, name, source, is_used=is_used))
            if is_used and text_of(source, "git"):
                reason = f"if {name} has [tool.uv.sources] of its own, they are not read: add its indexes to the spec"
                project.add(path, written, LineVerdict(Outcome.REFUSED, reason))
    _read_indexes(project)


def _read_indexes(project: Project) -> None:
    own = list_of(project.file.data, "tool", "uv", "index")
    known = {text_of(index, "name") for index in own}
    for package, sources in project.used.items():
        for source in sources:
            index = text_of(source, "index")
            if not index:
                continue
            owner = project.workspace or project
            if index in known:
                owner = project
            owner.indexes.setdefault(index, []).append(package)
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


def _source_reason(project: Project, name: str, source: Any, *, is_used: bool) -> str:
    if is_used:
        return f"{name} comes from there"
    for kind, taken in (("extra", project.extras), ("group", project.groups)):
        key = text_of(source, kind)
        if key and normalised(key) not in taken:
            return not_included(kind, key)
    if normalised(name) not in project.used:
        return f"no included requirement names {name}"
    if any(project.holds_on(text_of(source, "marker"), each) for each in project.platforms):
        return "a spec has one index for a package: that of its first platform"
    return f"not for {', '.join(project.platforms)}"


def _joined(verdicts: list[LineVerdict]) -> LineVerdict:
    """One verdict for a line with several values: the first that is lost, and all reasons."""
    if not verdicts:
        return LineVerdict(Outcome.NOT_UNDERSTOOD, "it has no value that can be read")
    lost = [each for each in verdicts if each.outcome.is_lost]
    reasons = dict.fromkeys(each.reason for each in verdicts)
    return LineVerdict((lost or verdicts)[0].outcome, "; ".join(filter(None, reasons)))


#: Keys of [tool.uv] with names of packages that are built of sources.
BUILT: Final = ("no-binary-package", "no-build-isolation-package")
#: Keys of [tool.uv] that have entries of their own.
_READ: Final = (
    *("dev-dependencies", "constraint-dependencies", "override-dependencies", "exclude-dependencies"),
    *("sources", "index", "environments"),
)
NO_EFFECT: Final = LineVerdict(Outcome.TRANSLATED, "a setting of uv's own, which does not decide what is installed")
_BUILDS: Final = LineVerdict(Outcome.REFUSED, "what a package's build imports is [build.NAME] requires")
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
        NO_EFFECT,
    ),
    "conflicts": LineVerdict(Outcome.TRANSLATED, "an environment has one of them; [variants] has the others"),
    "required-environments": LineVerdict(
        Outcome.TRANSLATED, "it restricts nothing: [env] platforms are those that a lock is for"
    ),
    "prerelease": LineVerdict(Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    "resolution": LineVerdict(Outcome.REFUSED, "the newest versions are locked, or the preferred ones"),
    "no-build": LineVerdict(Outcome.REFUSED, "write pure = false in [pip.build]"),
    "no-binary": LineVerdict(Outcome.REFUSED, "a wheel is built only if a release has none: name the packages"),
    "no-index": LineVerdict(
        Outcome.REFUSED, "an index is always read: ENVSPEC_DEFAULT_INDEX names another default one"
    ),
    "no-build-package": LineVerdict(Outcome.TRANSLATED, "only sdists without compiled code are built, when locking"),
    "no-build-isolation": _BUILDS,
    "extra-build-dependencies": _BUILDS,
    "build-constraint-dependencies": _BUILDS,
    "extra-build-variables": LineVerdict(Outcome.REFUSED, "the variables of a package's build are [build.NAME] env"),
    "config-settings": _BUILDS,
    "config-settings-package": _BUILDS,
    "dependency-metadata": LineVerdict(Outcome.REFUSED, "[pip] overrides replace what a package requires"),
    "allow-insecure-host": LineVerdict(Outcome.REFUSED, "certificates are those of this machine (SSL_CERT_FILE)"),
}
