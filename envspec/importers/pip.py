"""Requirements, options and indexes as pip takes them: what each adds to the draft, and what its entry says."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from envspec.credentials import has_login, without_credentials
from envspec.facts import load_facts
from envspec.importers.types import Clue, DraftIndex, DraftRequirement, Import, LabelledPin, Outcome, Rank, Source
from envspec.importers.unsupported import SUPPORTED, note_unsupported
from envspec.io.http_settings import default_index_url
from envspec.names import normalised
from envspec.origins import INDEX_FAMILY, PYTORCH_PAGES
from envspec.spec.errors import BadValue
from envspec.spec.pip_lines import option_of, with_name, without_slips
from envspec.spec.requirements import (
    LONGEST,
    Requirement,
    RequirementKind,
    is_address,
    is_pep508,
    read_constraint,
    read_requirement,
    without_label,
)
from envspec.spec.values import read_index_url

#: The CUDA in a local label, a file's name or a path: `cu124`, `pt20cu118`.
_CUDA: Final = re.compile(r"(?<![A-Za-z])(?:pt\d+)?cu(1[0-9])(\d)(?!\d)")
#: The libraries that torch's wheels require one by one, each in one version. Source: metadata of torch 2.0 to 2.15.
_OF_TORCH: Final = re.compile(
    r"nvidia-(?:cublas|cuda-cupti|cuda-nvrtc|cuda-runtime|cudnn|cufft|cufile|curand|cusolver|cusparse|cusparselt|nccl"
    r"|nvjitlink|nvshmem|nvtx)(?:-cu\d+)?"
)


class Use(Enum):
    """What requirements are for. VERSIONS: their pins are the versions that the first lock prefers."""

    DEPENDENCIES = "dependencies"
    CONSTRAINTS = "constraints"
    VERSIONS = "versions"


class LineVerdict(NamedTuple):
    """What became of a line, or of a part of it. reason: as in the ledger."""

    outcome: Outcome
    reason: str = ""


def add_requirement(
    text: str, by: Source, imported: Import, folder: Path, use: Use = Use.DEPENDENCIES, notes: tuple[str, ...] = ()
) -> LineVerdict:
    """Add a requirement to the draft. notes: what the entry says beside."""
    text = " ".join(text.split())
    bare, *options = re.split(r"\s(?=--?[a-z])", text)
    if len(bare) > LONGEST:
        return LineVerdict(Outcome.NOT_UNDERSTOOD, f"a requirement has {LONGEST} characters at most")
    is_lossy = any(option_of(each.strip())[0] != "hash" for each in options)
    reasons = [*notes]
    if options:
        names = [each.strip().partition("=")[0] for each in options]
        loss = f"without {', '.join(names)}: {_OTHERS_OF_A_LINE}"
        reasons.append(loss if is_lossy else "the lock has the hash of every file")
    try:
        read, project, more = _read(bare.strip(), folder)
        if use is Use.CONSTRAINTS:
            read_constraint(read.text)
    except BadValue as error:
        is_form = is_address(bare) or is_pep508(bare)
        return LineVerdict(Outcome.REFUSED if is_form else Outcome.NOT_UNDERSTOOD, _sentence(error))
    requirement, of_label = _without_label(read, by, imported)
    if requirement is None:
        return LineVerdict(Outcome.REFUSED, "; ".join(of_label))
    reasons += more + of_label
    if has_login(requirement.text):
        requirement = requirement.without_credentials()
        reasons.append("without its login, which must not be in a spec: write a variable, `https://${TOKEN}@host/...`")
    if use is Use.VERSIONS:
        return LineVerdict(Outcome.TRANSLATED, _prefer(requirement, imported) or "; ".join(reasons))
    lines = imported.draft.dependencies if use is Use.DEPENDENCIES else imported.draft.constraints
    lines.append(DraftRequirement(requirement.text, by, project))
    outcome = Outcome.TRANSLATED
    if is_lossy:
        outcome = Outcome.REFUSED
    elif not reasons and requirement.text == text:
        outcome = Outcome.KEPT
    return LineVerdict(outcome, "; ".join(reasons))


def _prefer(requirement: Requirement, imported: Import) -> str:
    """Prefer the version of a pin; why it is not preferred, if so."""
    pin = pinned(requirement)
    if pin is None:
        return "it is no pin: the lock decides its version"
    existing = imported.draft.versions.setdefault(requirement.name, pin)
    # A label that a requirement has lost is in `versions` already.
    if existing.partition("+")[0] == pin.partition("+")[0]:
        return ""
    return f"not preferred: {existing} is, of a source that was read before"


_OTHERS_OF_A_LINE: Final = "a spec has no options of pip; [build.NAME] has the variables of a package's build"


def pinned(requirement: Requirement) -> str | None:
    """The version of a requirement that allows one only, with its label; None if it allows more or is a URL's."""
    if requirement.wheel_version is not None:
        return str(requirement.wheel_version)
    if len(requirement.specifier) != 1:
        return None
    (clause,) = requirement.specifier
    is_exact = clause.operator in ("==", "===") and "*" not in clause.version
    return clause.version if is_exact else None


def is_required_by_torch(name: str) -> bool:
    """Whether torch's wheels require a package of a normalised name in one version: its pin follows from torch's."""
    return bool(_OF_TORCH.fullmatch(name))


def _sentence(error: BadValue) -> str:
    return f"{error}; {error.hint}"


def bracketed(extras: Collection[str]) -> str:
    """Extras as a requirement has them behind its name: `[cuda,dev]`, or nothing."""
    return f"[{','.join(extras)}]" if extras else ""


def _read(text: str, folder: Path) -> tuple[Requirement, Path | None, list[str]]:
    """A requirement, the local project or file that it names, and what was changed.

    Raises:
        BadValue: it is none.
    """
    reasons: list[str] = []
    address, _, marker = re.sub(r"\s;", ";", text).partition(";")
    if is_address(text) or ("://" not in text and "/" in address and "@" not in address):
        text = with_name(address.strip(), folder)
        if marker:
            text += f" ; {marker.strip()}"
        reasons.append(f"named {text.partition(' @ ')[0]}")
    try:
        requirement = read_requirement(text)
    except BadValue:
        meant = without_slips(text, is_pep508)
        if meant is None:
            raise
        requirement = read_requirement(meant)
        reasons.append("corrected")
    if requirement.kind is not RequirementKind.LOCAL or requirement.url is None:
        return requirement, None, reasons
    bare = requirement.url.partition("#")[0]
    path = folder / bare
    if bare.startswith("file:"):
        path = Path(unquote(urlsplit(bare).path))
    if not path.exists():
        where = "check out its submodule, or"
        if bare.startswith(("/", "file:")):
            where = "it was on the machine that wrote this:"
        raise BadValue(f"there is no {without_credentials(bare)}", f'{where} write "{requirement.name}==VERSION"')
    name = re.match(r"[\w.-]+", requirement.text)
    written = name[0] if name else requirement.name
    text = f"{written}{bracketed(requirement.extras)} @ {{path}}"
    if requirement.marker:
        text += f" ; {requirement.marker}"
    return read_requirement(text), path, reasons


def _without_label(requirement: Requirement, by: Source, imported: Import) -> tuple[Requirement | None, list[str]]:
    """A requirement without the local label of a build of torch, which decides [cuda]; None for builds that no spec
    can have. Other packages keep their labels.
    """
    bare, label = without_label(requirement)
    url, pin = requirement.url or "", pinned(requirement) or ""
    clue = cuda_of(label or url)
    if note_unsupported(imported, url, by, name=requirement.name, version=pin):
        return None, [SUPPORTED]
    if clue and url:
        add_cuda(clue, by, imported, f"the build of {requirement.name}", _rank_of(requirement.name))
    note_build(requirement.name, pin, by, imported)
    if requirement.name in INDEX_FAMILY and "+" in pin and (not url or PYTORCH_PAGES.match(url)):
        version, _, build = pin.partition("+")
        imported.draft.labelled.append(LabelledPin(requirement.name, version, build, by, bool(url)))
    if not label or requirement.name not in INDEX_FAMILY:
        return requirement, []
    if clue:
        reason = f"as {bare.text}, and [cuda] version = {clue}"
    elif label.startswith("cpu"):
        reason = f"as {bare.text}: without [cuda], torch is its build for the CPU"
    else:
        return None, [f"{SUPPORTED}: write {bare.text}"]
    imported.draft.versions.setdefault(bare.name, f"{pinned(bare)}+{label}")
    return bare, [reason]


def cuda_of(text: str) -> str | None:
    """`12.4` of a local label, a file's name or a URL that says `cu124`."""
    found = _CUDA.search(unquote(text))
    return f"{found[1]}.{found[2]}" if found else None


def note_build(name: str, version: str, by: Source, imported: Import) -> None:
    """Note the CUDA of a package's build, by its label, and that of torch by the runtime library it requires."""
    label = version.partition("+")[2]
    cuda = cuda_of(label)
    if label == "cpu" and name in INDEX_FAMILY:
        cuda = "cpu"
    elif re.fullmatch(r"nvidia-cuda-runtime(?:-cu\d+)?", name) and version.count(".") >= 2:
        cuda = ".".join(version.split(".")[:2])
    if cuda:
        add_cuda(cuda, by, imported, f"the build of {name}", _rank_of(name))


def _rank_of(name: str) -> Rank:
    """torch's CUDA is the environment's; another package can be built for an older minor version."""
    return Rank.FILE if name in INDEX_FAMILY or is_required_by_torch(name) else Rank.PACKAGE


def add_cuda(cuda: str, by: Source, imported: Import, why: str, rank: Rank = Rank.FILE, kind: str = "") -> None:
    """Note a CUDA version, or `cpu`, once for each file and reason."""
    cudas = imported.draft.cudas
    known = [(each.value, each.source.file, each.why) for each in cudas]
    if (cuda, by.file, why) not in known:
        cudas.append(Clue(cuda, by, why, rank, kind))


def torch_backend(value: str, by: Source, imported: Import) -> LineVerdict:
    """Note `cu128`, as uv's `torch-backend` has it."""
    if cuda := cuda_of(value):
        add_cuda(cuda, by, imported, "torch-backend of uv")
        return LineVerdict(Outcome.TRANSLATED, f"[cuda] version {cuda}")
    if note_unsupported(imported, f"/{value}", by):
        return LineVerdict(Outcome.REFUSED, "write [cuda] version")
    return LineVerdict(Outcome.TRANSLATED, "torch's build follows from [cuda]")


def add_option(name: str, value: str, by: Source, imported: Import, folder: Path, use: Use) -> LineVerdict:
    """Add to the draft what an option of pip does. name: the long one, without dashes; not `-r` and `-c`."""
    if name == "editable":
        return add_requirement(value, by, imported, folder, use, ("not editable: a wheel is built of it",))
    if name in ("index-url", "extra-index-url", "find-links"):
        return add_index(value, by, imported, is_links=name == "find-links", is_default=name == "index-url")
    if name == "no-binary" and value not in (":all:", ":none:"):
        imported.draft.build_packages += [each.strip() for each in value.split(",") if each.strip()]
        return LineVerdict(Outcome.TRANSLATED, "[pip.build] packages: built if a release has no wheel")
    return _OPTIONS.get(name, LineVerdict(Outcome.NOT_UNDERSTOOD, "it is not an option of pip's requirements files"))


_NO_EFFECT: Final = (
    *("upgrade", "U", "quiet", "q", "verbose", "v", "user", "force-reinstall", "no-cache-dir", "no-input"),
    *("disable-pip-version-check", "break-system-packages", "no-compile", "ignore-installed", "I", "no-clean"),
)

#: Source: pip's documentation, "Requirements File Format" and "pip install" (pip 25.3).
_OPTIONS: Final = {
    **dict.fromkeys(_NO_EFFECT, LineVerdict(Outcome.TRANSLATED, "it does not decide what is installed")),
    "pre": LineVerdict(Outcome.REFUSED, 'name each pre-release instead: "torch>=2.10.0rc1"'),
    "no-binary": LineVerdict(Outcome.REFUSED, "a wheel is built only if a release has none: name the packages"),
    "only-binary": LineVerdict(
        Outcome.TRANSLATED, "only sdists without compiled code are built, when locking; [pip.build] pure = false: none"
    ),
    "prefer-binary": LineVerdict(Outcome.TRANSLATED, "a wheel always goes before an sdist of the same release"),
    "require-hashes": LineVerdict(Outcome.TRANSLATED, "the lock has the hash of every file"),
    "hash": LineVerdict(Outcome.TRANSLATED, "the lock has the hash of every file"),
    "trusted-host": LineVerdict(Outcome.REFUSED, "certificates are those of this machine (SSL_CERT_FILE)"),
    "no-index": LineVerdict(
        Outcome.REFUSED, "an index is always read: ENVSPEC_DEFAULT_INDEX names another default one"
    ),
    **dict.fromkeys(
        ("no-deps", "no-dependencies"),
        LineVerdict(
            Outcome.REFUSED, "a lock has what its packages require; [pip] overrides with remove = true leave one out"
        ),
    ),
    "no-build-isolation": LineVerdict(Outcome.REFUSED, "name what its build imports in [build.NAME] requires"),
    "config-settings": LineVerdict(Outcome.REFUSED, _OTHERS_OF_A_LINE),
    "global-option": LineVerdict(Outcome.REFUSED, _OTHERS_OF_A_LINE),
    "use-feature": LineVerdict(Outcome.REFUSED, "it is a feature of pip's own"),
}

#: Options without a value.
_FLAGS: Final = frozenset(
    {"pre", "prefer-binary", "require-hashes", "no-index", "no-deps", "no-dependencies", "no-build-isolation"}
    | {*_NO_EFFECT, "system"}
)


def is_flag(word: str) -> bool:
    """Whether a word is an option that takes no value."""
    return option_of(word)[0] in _FLAGS


def add_index(  # noqa: PLR0913
    url: str,
    by: Source,
    imported: Import,
    *,
    name: str = "",
    packages: tuple[str, ...] = (),
    is_links: bool = False,
    is_default: bool = False,
) -> LineVerdict:
    """Add an index or a page of links to the draft. PyTorch's own decides [cuda] instead.

    packages: what comes from it, if the source says so. is_default: it replaces the default index.
    """
    address, login = url, ""
    if has_login(url):
        address = without_credentials(url)
        login = "; its login must not be in a spec: write variables, `https://${USER}:${PASSWORD}@host/...`"
    cuda, names = cuda_of(_path_of(url)), tuple(map(normalised, packages))
    # Of an index whose packages are named, torch's family decides what the project is for.
    is_of_torch = not names or not {*names}.isdisjoint(INDEX_FAMILY)
    if is_of_torch and note_unsupported(imported, without_credentials(url), by):
        return LineVerdict(Outcome.REFUSED, SUPPORTED)
    if found := PYTORCH_PAGES.match(url):
        return _pytorch(found[1], cuda, names, by, imported)
    if without_credentials(url).rstrip("/") == default_index_url({}).rstrip("/"):
        return LineVerdict(Outcome.TRANSLATED, "it is the default index")
    if "://" not in url:
        imported.draft.unread_indexes.append(url)
        return LineVerdict(Outcome.REFUSED, 'name each wheel by its path: "NAME @ ./wheels/NAME-1.0-py3-none-any.whl"')
    try:
        address = read_index_url(address)
    except BadValue as error:
        imported.draft.unread_indexes.append(address)
        return LineVerdict(Outcome.REFUSED, _sentence(error))
    if is_default and not packages:
        imported.draft.unread_indexes.append(address)
        reason = f"the default index is that of ENVSPEC_DEFAULT_INDEX: set it to {without_credentials(address)}"
        return LineVerdict(Outcome.TRANSLATED, reason)
    form = "links" if is_links else "simple"
    index = _moved(DraftIndex(address, by, name, names, form))
    _merge(index, imported)
    named = ", ".join(index.packages)
    reason = f"[[pip.index]] for {named}" if named else "[[pip.index]]: its packages are to be named"
    if cuda and named:
        add_cuda(cuda, by, imported, "the address of an index")
    elif cuda:
        # What is there may be built for another CUDA than torch.
        reason += f"; --cuda {cuda} if torch is to be of that CUDA too"
    return LineVerdict(Outcome.TRANSLATED, f"{reason}{login}")


def _moved(index: DraftIndex) -> DraftIndex:
    """An index as the facts know it: where it is today, its packages and its form."""
    secure = re.sub(r"^http://", "https://", index.url)
    for row in load_facts().links:
        if secure.startswith(row.url):
            url = secure.replace(row.url, row.now, 1) if row.now else index.url
            return index._replace(url=url, packages=index.packages or row.packages, format=row.format)
    return index


def _merge(index: DraftIndex, imported: Import) -> None:
    """Add an index once, with the packages of all lines that name it."""
    indexes = imported.draft.indexes
    for at, old in enumerate(indexes):
        if old.url == index.url:
            packages = tuple(dict.fromkeys((*old.packages, *index.packages)))
            indexes[at] = old._replace(name=old.name or index.name, packages=packages)
            return
    indexes.append(index)


def _path_of(url: str) -> str:
    """The path of a URL; empty if it has none that can be read."""
    try:
        return urlsplit(url).path
    except ValueError:
        return ""


def _pytorch(path: str, cuda: str | None, packages: tuple[str, ...], by: Source, imported: Import) -> LineVerdict:
    """PyTorch's own index: torch's family comes from there as [cuda] requires. packages: normalised."""
    others = sorted({*packages} - {*INDEX_FAMILY})
    if cuda and len(others) < len({*packages}):
        add_cuda(cuda, by, imported, "PyTorch's index")
    if others:
        which = ", ".join(others)
        return LineVerdict(
            Outcome.REFUSED, f"only torch's family comes from PyTorch's index: name {which} by its wheel"
        )
    if cuda:
        add_cuda(cuda, by, imported, "PyTorch's index")
        return LineVerdict(Outcome.TRANSLATED, f"[cuda] version = {cuda}")
    if path.startswith("cpu"):
        add_cuda("cpu", by, imported, "PyTorch's index")
        return LineVerdict(Outcome.TRANSLATED, "without [cuda], torch is its build for the CPU")
    return LineVerdict(Outcome.TRANSLATED, "PyTorch's index is used if [cuda] version needs it")
