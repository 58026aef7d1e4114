"""conda-lock.yml, version 1: of its categories, `dev` is a group, and others than `main` are extras.

Source: conda-lock's documentation, "Unified lockfile" and "Extras"
(https://conda.github.io/conda-lock/output/), and `conda_lock.lockfile.v1.models` of conda-lock 4.0.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from envspec.adopt.conda import PLATFORMS, channels_of, file_row, locked_package, marker_of, rows_of
from envspec.adopt.rows import ForeignLock, Row, Selection
from envspec.adopt.selected import chosen, chosen_groups, git_source, left_out, text_of_file
from envspec.errors import UsageError
from envspec.io.yaml_lines import InvalidYaml, Value, parse_yaml
from envspec.models import GIT, CondaPackage, Platform
from envspec.names import normalised
from envspec.structs import replace

_MAIN: Final = "main"
_DEV: Final = "dev"
_HINT: Final = "run `conda-lock lock` of version 1.0 or newer"


def read(path: Path, selection: Selection) -> ForeignLock:
    """A conda-lock.yml.

    Raises:
        UsageError: it can't be read, lacks what is selected, or has a package from a source that is not supported.
    """
    top = _document(path)
    packages = [each for each in top.get("package").items if each.get("platform").text in PLATFORMS]
    categories = {_category(each) for each in packages} - {_MAIN}
    all_groups, all_extras = categories & {_DEV}, categories - {_DEV}
    extras = chosen("extra", selection.extras, all_extras, path)
    groups = chosen_groups(selection, all_groups, all_groups, path)

    def names(extras: frozenset[str], groups: frozenset[str]) -> set[str]:
        return {normalised(each.get("name").text) for each in _selected(packages, extras | groups)}

    selected = list(_selected(packages, extras | groups))
    if not selected:
        raise UsageError(f"{path} has no packages for {', '.join(PLATFORMS)}", hint=_HINT)
    by_platform: dict[Platform, list[CondaPackage]] = {}
    rows: dict[Row, None] = {}
    for each in selected:
        platform = PLATFORMS[each.get("platform").text]
        if each.get("manager").text == "pip":
            rows[_pip_row(each, platform, path)] = None
        else:
            by_platform.setdefault(platform, []).append(_conda_package(each))
    conda = {platform: rows_of(platform, found) for platform, found in by_platform.items()}
    return ForeignLock(
        path,
        "",
        "",
        tuple(sorted(rows, key=lambda row: row.name)),
        left_out(names, (all_extras, extras), (all_groups, groups)),
        selection=selection,
        conda=conda,
        channels=channels_of(conda),
    )


def _document(path: Path) -> Value:
    try:
        top = parse_yaml(text_of_file(path), str(path))
    except InvalidYaml as error:
        raise UsageError(str(error), hint=_HINT) from None
    if top.get("version").text != "1":
        raise UsageError(f"{path} is not a conda-lock.yml of version 1", hint=_HINT)
    for each in top.get("package").items:
        for key in ("name", "version", "url"):
            if not each.get(key).text:
                raise UsageError(f"{path}:{each.line}: a package without {key}", hint=_HINT)
    return top


def _category(package: Value) -> str:
    return normalised(package.get("category").text or _MAIN)


def _selected(packages: Sequence[Value], categories: frozenset[str]) -> Iterator[Value]:
    return (each for each in packages if _category(each) in {_MAIN, *categories})


def _conda_package(package: Value) -> CondaPackage:
    """The build is that of the file's name; `noarch` follows from whether it requires Python."""
    url, depends = package.get("url").text, package.get("dependencies").keys
    subdir = url.rpartition("/")[0].rpartition("/")[2]
    noarch = ""
    if subdir == "noarch":
        noarch = "python" if "python" in depends else "generic"
    record = {
        **{key: package.get(key).text for key in ("name", "version", "build")},
        "build_number": 0,
        "subdir": subdir,
        "sha256": package.get("hash", "sha256").text,
        "md5": package.get("hash", "md5").text or None,
        "depends": [f"{name} {version.text}".strip() for name, version in depends.items()],
        "noarch": noarch,
    }
    found = locked_package(record, url)
    build = re.sub(r"\.(?:conda|tar\.bz2)$", "", found.filename).rpartition("-")[2]
    number = re.search(r"(?:^|_)(\d{1,9})(?:_cp\w*)?$", build)
    return replace(found, build=build, build_number=int(number[1]) if number else 0)


def _pip_row(package: Value, platform: Platform, path: Path) -> Row:
    name, version, url = (package.get(key).text for key in ("name", "version", "url"))
    if url.startswith("git+"):
        address, _, commit = url.removeprefix("git+").rpartition("@")
        source = git_source(path, name, address, commit)
        return Row(normalised(name), version, GIT, marker=marker_of(platform), source=source)
    if not url.startswith(("https://", "http://")):
        problem = f"{path}: {name} is {url}, which no other machine has"
        raise UsageError(problem, hint="name it by a URL, and lock again")
    return file_row(name, version, url, package.get("hash", "sha256").text, platform)
