"""What the index has of the versions that the sources name. Pure."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from typing import Final

from packaging.version import Version

from envspec.diagnostics.audit.family import excluding
from envspec.diagnostics.audit.python import pythons
from envspec.diagnostics.audit.types import Audit, Finding, Rule, Severity
from envspec.facts.tables import pep440
from envspec.importers.types import Source
from envspec.origins import PYTORCH_PAGES
from envspec.resolve.pypi.index.page import SDIST_SUFFIXES, ListedFile, PageListing
from envspec.resolve.pypi.index.selection import TagRanks, version_of
from envspec.resolve.pypi.metadata import allows
from envspec.spec.errors import quoted
from envspec.spec.requirements import RequirementKind
from envspec.spec.targets import wheel_tags

NO_PROJECT: Final = Rule("ENV501", Severity.ERROR, "the index does not have the package")
GONE: Final = Rule("ENV502", Severity.ERROR, "the index does not have this version")
YANKED: Final = Rule("ENV503", Severity.WARNING, "this version is yanked")
NO_WHEEL: Final = Rule("ENV504", Severity.WARNING, "this version has no wheel for the target, only an sdist")
NO_FILE: Final = Rule("ENV505", Severity.ERROR, "this version has no file for the target")
UNSOLVABLE: Final = Rule("ENV506", Severity.ERROR, "the requirements have no solution")

_PAGE: Final = "the package's page on the index"
#: How many versions a message names.
_NAMED: Final = 3


def is_elsewhere(audit: Audit, name: str) -> bool:
    """Whether a name may come from another index of the sources, PyTorch's among them."""
    return audit.has_other_index(name) or any(PYTORCH_PAGES.search(each.text) for each in audit.ledger)


def comes_from_another(audit: Audit, name: str) -> bool:
    """Whether an index of the sources is named for this package."""
    return any(name in each.packages for each in audit.draft.indexes)


def pins_of(audit: Audit) -> Iterator[tuple[str, str, Source]]:
    """Name, version and line of each version that the sources name, of packages that are from the default index."""
    named = audit.of_images
    for each in audit.required:
        name = each.name
        if each.requirement.kind is RequirementKind.NAME and each.pin and not comes_from_another(audit, name):
            named.add(name)
            # Builds with a label are on PyTorch's own indexes, of which the facts know.
            if "+" not in each.pin:
                yield name, each.pin, each.source
    for name, version in sorted(audit.versions().items()):
        locked = audit.draft.locked.get(name)
        is_default = (locked is None or locked.is_default) and "+" not in version
        if name not in named and is_default and not comes_from_another(audit, name):
            yield name, version, audit.bringing(name)


def projects(audit: Audit) -> Iterator[Finding]:
    """Names that the index does not have."""
    for each in audit.required:
        name = each.name
        missing = audit.pages is not None and name in audit.pages and audit.pages[name] is None
        # Of a module's name, ENV104 says which package is meant.
        if (
            missing
            and name not in audit.facts.misnamed
            and each.requirement.kind is RequirementKind.NAME
            and not is_elsewhere(audit, name)
        ):
            what = f"the default index does not have {name}"
            todo = "correct the name, or name the index that has it (--extra-index-url)"
            yield Finding(NO_PROJECT, each.source, what, "its page does not exist (404)", _PAGE, todo)


def releases(audit: Audit) -> Iterator[Finding]:
    """Versions that are gone, yanked, or without a file for the target."""
    if any(pythons(audit)):
        # Every release for the Pythons that the sources require would be reported once more.
        return
    ranks = TagRanks(tuple(wheel_tags(audit.target)))
    for name, text, source in pins_of(audit):
        page = (audit.pages or {}).get(name)
        if page is None:
            continue
        version = pep440(text)
        if version is not None and release_files(page, version):
            yield from _release(audit, f"{name} {text}", version, source, page, ranks)
        elif not is_elsewhere(audit, name):
            near = _near(page, version)
            why = "its page has no such release"
            if near:
                why = f"its page has {', '.join(near)} next to it"
            yield Finding(GONE, source, f"the default index does not have {name} {text}", why, _PAGE, _use(near))


def _release(
    audit: Audit, release: str, version: Version, source: Source, page: PageListing, ranks: TagRanks
) -> Iterator[Finding]:
    """What is wrong with a release that the index has. release: its name and version, as the source writes them."""
    files = release_files(page, version)
    reasons = [file.yanked for file in files]
    if None not in reasons:
        why = "its authors gave no reason"
        if written := list(filter(None, reasons)):
            why = f"its authors write: {quoted(written[0], 200)}"
        yield Finding(YANKED, source, f"{release} was yanked", why, _PAGE, _use(_near(page, version)))
    python = audit.target.python
    usable = [file for file in files if accepts_python(file, python.version)]
    if any(ranks.rank(file.filename) is not None for file in usable):
        return
    target = f"Python {python.series} on {audit.target.platform.value}"
    if audit.is_python_assumed:
        target += " (assumed: no source names a Python)"
    if any(file.filename.endswith(SDIST_SUFFIXES) for file in usable):
        # An sdist of pure Python is built in a second: wheels for platforms show that there is something to compile.
        if any(map(_is_for_platform, page.names)):
            newer = _with_wheel(page, ranks, python.version, version)
            what = f"{release} has no wheel for {target}: installers build its sdist"
            todo = f"use {newer}, which has one" if newer else "expect a build, which may need a compiler"
            yield Finding(NO_WHEEL, source, what, _wheels(files), _PAGE, todo)
        return
    why = _wheels(files)
    if not usable:
        why = f"it requires Python {next(file.requires_python for file in files if file.requires_python)}"
    newer = _with_wheel(page, ranks, python.version, version)
    todo = f"use {newer}, or another Python" if newer else "use another Python or version"
    yield Finding(NO_FILE, source, f"{release} has no file for {target}", why, _PAGE, todo)


def _use(near: Sequence[str]) -> str:
    return f"use {' or '.join(near) or 'another version'}"


def _is_for_platform(filename: str) -> bool:
    """Whether a file is a wheel with compiled code."""
    return filename.endswith(".whl") and not filename.endswith("-any.whl")


def release_files(page: PageListing, version: Version) -> list[ListedFile]:
    """The files of one release."""
    return [page.file(number) for number, name in enumerate(page.names) if version_of(name) == version]


def accepts_python(file: ListedFile, python: str) -> bool:
    """Whether `Requires-Python` allows a version; one that can't be read excludes none, as for pip."""
    return allows(file.requires_python or "", python)


def _near(page: PageListing, version: Version | None) -> list[str]:
    """The next older and the next newer final release that are not yanked."""
    published = set(filter(None, map(version_of, page.names))) - {version}
    fine = sorted(each for each in published if not each.is_prerelease)
    # Each one reads its files.
    if len(fine) < 400:
        fine = [each for each in fine if _is_offered(page, each)]
    newer = len(fine)
    if version is not None:
        newer = bisect(fine, version)
    return list(map(str, fine[max(newer - 1, 0) : newer + 1]))


def _is_offered(page: PageListing, version: Version) -> bool:
    return any(file.yanked is None for file in release_files(page, version))


def _with_wheel(page: PageListing, ranks: TagRanks, python: str, version: Version) -> str:
    """The nearest newer release with a wheel for the target; empty if there is none."""
    found: list[Version] = []
    for number, name in enumerate(page.names):
        other = version_of(name)
        if other is None or other <= version or other.is_prerelease or ranks.rank(name) is None:
            continue
        file = page.file(number)
        if file.yanked is None and accepts_python(file, python):
            found.append(other)
    return str(min(found)) if found else ""


def _wheels(files: Sequence[ListedFile]) -> str:
    """What its wheels are for."""
    pythons, platforms = set(), set()
    for file in files:
        if file.is_wheel:
            python, _, platform = file.filename.removesuffix(".whl").rsplit("-", 3)[1:]
            pythons.add(python)
            platforms.add(platform.split(".")[0])
    if not pythons:
        return "it has no wheel"
    text = f"its wheels are for {', '.join(sorted(pythons))} on {', '.join(sorted(platforms)[:_NAMED])}"
    if len(platforms) > _NAMED:
        text += " and others"
    return text


def unsolvable(audit: Audit) -> Iterator[Finding]:
    """Requirements of which no set of releases satisfies all."""
    if not audit.unresolved or any(excluding(audit)):
        return
    lines = [each.source for each in audit.required if each.name in audit.unresolved]
    source = [*lines, audit.top][0]
    what, todo = "no set of releases satisfies all requirements", "loosen one of the requirements named"
    yield Finding(UNSOLVABLE, source, what, audit.unresolved, "metadata of the releases on the index", todo)
