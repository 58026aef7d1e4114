"""What the index has of the versions that the sources name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from packaging.version import Version

from envspec.diagnostics.audit.family import EXCLUDES, requested
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
        name = each.requirement.name
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
        name = each.requirement.name
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
    for name, version, source in pins_of(audit):
        page = (audit.pages or {}).get(name)
        if page is not None:
            yield from _release(audit, name, version, source, page, ranks)


def _release(
    audit: Audit, name: str, text: str, source: Source, page: PageListing, ranks: TagRanks
) -> Iterator[Finding]:
    version = pep440(text)
    files = release_files(page, version)
    if (version is None or not files) and is_elsewhere(audit, name):
        return
    if version is None or not files:
        near = _near(page, version)
        todo = f"use {' or '.join(near)}" if near else "use another version"
        why = f"its page has {', '.join(near)} next to it" if near else "its page has no such release"
        yield Finding(GONE, source, f"the default index does not have {name} {text}", why, _PAGE, todo)
        return
    reasons = [file.yanked for file in files]
    if None not in reasons:
        reason = next((each for each in reasons if each), "")
        near = _near(page, version)
        why = f"its authors write: {quoted(reason, 200)}" if reason else "its authors gave no reason"
        todo = f"use {' or '.join(near)}" if near else "use another version"
        yield Finding(YANKED, source, f"{name} {text} was yanked", why, _PAGE, todo)
    series, platform = audit.target.python.series, audit.target.platform.value
    usable = [file for file in files if accepts_python(file, audit.target.python.version)]
    if any(ranks.rank(file.filename) is not None for file in usable):
        return
    whether = " (assumed: no source names a Python)" if audit.is_python_assumed else ""
    target = f"Python {series} on {platform}{whether}"
    if any(file.filename.endswith(SDIST_SUFFIXES) for file in usable):
        newer = _with_wheel(page, ranks, audit.target.python.version, version)
        # An sdist of pure Python is built in a second: wheels for platforms show that there is something to compile.
        if any(each.endswith(".whl") and not each.endswith("-any.whl") for each in page.names):
            what = f"{name} {text} has no wheel for {target}: installers build its sdist"
            todo = f"use {newer}, which has one" if newer else "expect a build, which may need a compiler"
            yield Finding(NO_WHEEL, source, what, _wheels(files), _PAGE, todo)
        return
    requires = next((file.requires_python for file in files if file.requires_python), "")
    why = f"it requires Python {requires}" if not usable else _wheels(files)
    newer = _with_wheel(page, ranks, audit.target.python.version, version)
    todo = f"use {newer}, or another Python" if newer else "use another Python or version"
    yield Finding(NO_FILE, source, f"{name} {text} has no file for {target}", why, _PAGE, todo)


def release_files(page: PageListing, version: Version | None) -> list[ListedFile]:
    """The files of one release."""
    if version is None:
        return []
    return [page.file(number) for number, name in enumerate(page.names) if version_of(name) == version]


def accepts_python(file: ListedFile, python: str) -> bool:
    """Whether `Requires-Python` allows a version; one that can't be read excludes none, as for pip."""
    return allows(file.requires_python or "", python)


def _near(page: PageListing, version: Version | None) -> list[str]:
    """The next older and the next newer final release that are not yanked."""
    published = {version_of(name) for name in page.names} - {version}
    final = sorted(each for each in filter(None, published) if not each.is_prerelease)
    # Each one reads its files.
    fine = [each for each in final if _is_offered(page, each)] if len(final) < 400 else final
    if version is None:
        return [str(each) for each in fine[-1:]]
    older = [each for each in fine if each < version][-1:]
    newer = [each for each in fine if each > version][:1]
    return [str(each) for each in (*older, *newer)]


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
    tags = [name.removesuffix(".whl").rsplit("-", 3)[1:] for file in files if (name := file.filename).endswith(".whl")]
    pythons = sorted({tag[0] for tag in tags})
    platforms = sorted({tag[2].split(".")[0] for tag in tags})
    shown = f"{', '.join(pythons)} on {', '.join(platforms[:_NAMED])}{' and others' if len(platforms) > _NAMED else ''}"
    return f"its wheels are for {shown}" if tags else "it has no wheel"


def unsolvable(audit: Audit) -> Iterator[Finding]:
    """Requirements of which no set of releases satisfies all."""
    if audit.unresolved and not any(each.rule is EXCLUDES for each in requested(audit)):
        what = "no set of releases satisfies all requirements"
        source = next((each.source for each in audit.required if each.requirement.name in audit.unresolved), audit.top)
        todo = "loosen one of the requirements named"
        yield Finding(UNSOLVABLE, source, what, audit.unresolved, "metadata of the releases on the index", todo)
