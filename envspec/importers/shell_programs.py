"""Programs in shell scripts of images -> what they add to the draft of a spec."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from envspec.facts import load_facts
from envspec.importers.types import Clue, Import, LedgerEntry, Outcome, Source
from envspec.importers.variables import gpus_of
from envspec.names import normalised
from envspec.spec.conda import read_match_spec
from envspec.spec.errors import BadValue


class Command(NamedTuple):
    """One command. words: the program without its folder, then its arguments. text: as it is written."""

    words: tuple[str, ...]
    source: Source
    text: str


class Clone(NamedTuple):
    """A repository that was cloned. entry: of the ledger, by its index."""

    url: str
    revision: str
    entry: int


@dataclass(slots=True)
class Shell:
    """The state in which commands are read.

    file: of the script, as messages name it. context: the project's folder, which paths of requirements start from.
    variables: name -> value; what is not in there is unknown. copies: the container's paths, and what is copied there;
    the last one counts. written: the container's paths -> lines of files that the script writes. clones: by the folder
    in the container. has_system: False in a stage whose packages of the system are not in the final image.
    """

    imported: Import
    file: str
    context: Path
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    copies: list[tuple[str, Path]] = field(default_factory=list)
    written: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    clones: dict[str, Clone] = field(default_factory=dict)
    has_system: bool = True

    def path(self, name: str) -> str:
        """A path in the container, in full."""
        return posixpath.normpath(posixpath.join(self.workdir, name))

    def host(self, name: str) -> Path | None:
        """The project's file or folder at a path in the container; None if none is copied there."""
        path = self.path(name)
        for target, source in reversed(self.copies):
            rest = posixpath.relpath(path, target)
            if rest == "." or not rest.startswith(".."):
                found = source / rest if rest != "." else source
                if found.exists() and _is_inside(found, source):
                    return found
        return None

    def add(self, command: Command, outcome: Outcome, reason: str = "", text: str = "") -> None:
        """An entry for a command, or for a part of it."""
        self.imported.add(command.source, text or command.text, outcome, reason)


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


Reader = Callable[[Shell, Command], None]


def split_options(words: Iterable[str], valued: Collection[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values, and the other words. valued: the options that have a value."""
    given: list[tuple[str, str]] = []
    others: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word == "--":
            others += remaining
        elif word in ("-", "") or not word.startswith("-"):
            others.append(word)
        elif word.startswith("--") or word in valued:
            given.append((name, value if equals else next(remaining, "") if name in valued else ""))
        elif word[:2] in valued:
            given.append((word[:2], word[2:].removeprefix("=")))
        else:
            flags = [f"-{letter}" for letter in word[1:]]
            given += [(flag, next(remaining, "") if flag in valued else "") for flag in flags]
    return given, others


# pip and uv


class PipOption(NamedTuple):
    """names: as the command line has them. line: the same option in a requirements file, empty if it has none.
    outcome, reason: for the others; without a reason the option concerns only the run of pip.
    """

    names: str
    has_value: bool = False
    line: str = ""
    reason: str = ""
    outcome: Outcome = Outcome.REFUSED


#: Sources: pip's and uv's references of their command lines.
PIP_OPTIONS: Final = (
    PipOption("-r --requirement --requirements", True, "-r"),
    PipOption("-c --constraint --constraints", True, "-c"),
    PipOption("-e --editable", True, "-e"),
    PipOption("-i --index-url --default-index --pypi-url", True, "--index-url"),
    PipOption("--extra-index-url --index", True, "--extra-index-url"),
    PipOption("-f --find-links", True, "--find-links"),
    PipOption("--no-binary", True, "--no-binary"),
    PipOption("--only-binary", True, "--only-binary"),
    PipOption("--trusted-host", True, "--trusted-host"),
    PipOption("--pre", False, "--pre"),
    PipOption("--no-index", False, "--no-index"),
    PipOption("--prefer-binary", False, "--prefer-binary"),
    PipOption("--require-hashes", False, "--require-hashes"),
    PipOption(
        "--no-deps",
        reason="a lock has what packages require; an entry of [pip] overrides with `remove = true` leaves a package out",
    ),
    PipOption(
        "--no-build-isolation",
        reason="needs nothing: what compiles against torch is built beside the lock's torch",
        outcome=Outcome.TRANSLATED,
    ),
    PipOption(
        "-t --target --prefix --root",
        True,
        reason="a spec has one environment, without folders of packages beside it: they are required like the others",
    ),
    PipOption("--group", True, reason='name the group in [pip] groups: `groups = ["NAME"]`'),
    PipOption(
        "-C --config-settings --config-setting --global-option --build-option --install-option",
        True,
        reason="options of a build: a spec has only its variables, [build.NAME] env",
    ),
    PipOption(
        "--platform --python-version --implementation --abi --python-platform",
        True,
        reason="a spec has the platforms and the Python in [env]",
    ),
    PipOption(
        "-q -v -U -I -n -y --quiet --verbose --upgrade --user --system --break-system-packages --no-input --isolated "
        "--no-cache-dir --no-cache --disable-pip-version-check --no-warn-script-location --no-warn-conflicts "
        "--use-pep517 --no-use-pep517 --compile --no-compile --compile-bytecode --force-reinstall --ignore-installed "
        "--reinstall --no-python-version-warning --require-virtualenv --no-color --no-progress --native-tls --offline "
        "--refresh --strict --exact --no-config --active --no-sync --frozen --locked --inexact"
    ),
    PipOption(
        "-p --python --cache-dir --progress-bar --root-user-action --timeout --default-timeout --retries --src --cert "
        "--client-cert --proxy --log --upgrade-strategy --use-feature --use-deprecated --exists-action --link-mode "
        "--index-strategy --keyring-provider --report --allow-insecure-host --upgrade-package -P --reinstall-package "
        "--resolution --config-file --directory --project",
        True,
    ),
)
_PIP_OPTIONS: Final = {name: row for row in PIP_OPTIONS for name in row.names.split()}
_PIP_VALUED: Final = {"--torch-backend", *(name for name, row in _PIP_OPTIONS.items() if row.has_value)}

#: Packages that install packages: envspec does that itself.
INSTALLERS: Final = frozenset(
    {"pip", "wheel", "uv", "poetry", "pipenv", "pipx", "virtualenv", "pdm", "conda", "pip-tools"}
)


def read_pip(shell: Shell, command: Command) -> None:
    """`pip install`, `uv pip install`, `uv add`."""
    words = command.words[next(at for at, word in enumerate(command.words) if word in ("install", "add", "sync")) + 1 :]
    given, names = split_options(words, _PIP_VALUED)
    before = len(shell.imported.ledger)
    if command.words[:3] == ("uv", "pip", "sync"):
        given, names = [*given, *(("-r", name) for name in names)], []
    # Indexes first: the lines after them are searched there.
    lines = [line for option, value in given for line in _option_lines(shell, command, option, value)]
    lines += [line for name in names for line in _name_lines(shell, command, name)]
    if lines:
        _read_lines(shell, command, lines)
    if len(shell.imported.ledger) == before:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: no packages")


def _read_lines(shell: Shell, command: Command, lines: Sequence[str]) -> None:
    from envspec.importers.requirements import read_lines

    read_lines([(command.source, line) for line in sorted(lines, key=_is_option)], shell.context, shell.imported)


def _is_option(line: str) -> bool:
    return not re.match(r"--(?:extra-)?index-url|--find-links|--no-index|--pre|--trusted-host", line)


def _option_lines(shell: Shell, command: Command, option: str, value: str) -> list[str]:
    row = _PIP_OPTIONS.get(option)
    text = f"{option} {value}".rstrip()
    if option == "--torch-backend":
        _torch_backend(shell, command, value)
    elif row is None:
        shell.add(command, Outcome.NOT_UNDERSTOOD, f"envspec does not know this option of {command.words[0]}", text)
    elif row.reason:
        shell.add(command, row.outcome, row.reason, text)
    elif row.line == "-e":
        return _local(shell, command, value, "-e ")
    elif row.line in ("-r", "-c") and "://" not in value:
        return _file_lines(shell, command, row.line, value)
    elif row.line:
        return [f"{row.line} {value}".rstrip()]
    return []


def _torch_backend(shell: Shell, command: Command, value: str) -> None:
    text = f"--torch-backend {value}"
    if found := re.fullmatch(r"cu(\d+)(\d)", value):
        cuda = f"{found[1]}.{found[2]}"
        shell.imported.draft.cudas.append(Clue(cuda, command.source, text))
        shell.add(command, Outcome.TRANSLATED, f"[cuda] version {cuda}", text)
    else:
        shell.add(command, Outcome.TRANSLATED, "torch's build follows from [cuda]", text)


def _file_lines(shell: Shell, command: Command, option: str, name: str) -> list[str]:
    written = shell.written.get(shell.path(name))
    text = f"{option} {name}"
    if written is not None and option == "-r":
        from envspec.importers.requirements import read_lines

        shell.add(command, Outcome.TRANSLATED, "its lines, from where they are written", text)
        read_lines([(Source(shell.file, line), each) for line, each in written], shell.context, shell.imported)
        return []
    host = shell.host(name)
    if host is None:
        reason = (
            f"{name} is not among the files that are copied from the project: `envspec init` reads it if it is named"
        )
        shell.add(command, Outcome.REFUSED, reason, text)
        return []
    if host.name == "pyproject.toml":
        shell.imported.include(host, command.source, text)
        return []
    return [f"{option} {_relative(host, shell.context)}"]


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _name_lines(shell: Shell, command: Command, name: str) -> list[str]:
    plain = normalised(re.split(r"[\[<>=!~;@ ]", name, maxsplit=1)[0])
    if plain in INSTALLERS:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: envspec installs packages itself", name)
        return []
    is_path = name.startswith((".", "/", "~")) or ("/" in name and "://" not in name and "@" not in name)
    if is_path or (re.search(r"\.(whl|tar\.gz|zip)$", name) and "://" not in name):
        return _local(shell, command, name, "")
    return [name]


def _local(shell: Shell, command: Command, name: str, option: str) -> list[str]:
    """The line of a local project or file; an entry if it is not the project's."""
    if "://" in name:
        return [option + name]
    found = re.fullmatch(r"(?:file:)?(?P<path>[^\[]*)(?P<extras>(?:\[.*\])?)", name)
    path, extras = (found["path"], found["extras"]) if found else (name, "")
    if (host := shell.host(path or ".")) is not None:
        relative = _relative(host, shell.context)
        return [f"{option}{relative if relative.startswith('.') else './' + relative}{extras}"]
    text = f"{option}{name}"
    clone = shell.clones.get(shell.path(path or "."))
    if clone is None:
        reason = f"{path} is not among the files that are copied from the project"
        shell.add(command, Outcome.REFUSED, reason, text)
        return []
    return _cloned(shell, command, clone, extras, text)


def _cloned(shell: Shell, command: Command, clone: Clone, extras: str, text: str) -> list[str]:
    url = f"git+{clone.url}" + (f"@{clone.revision}" if clone.revision else "")
    package = _package_of(clone.url)
    if package is None:
        hint = (
            f'add "NAME{extras} @ {url}" to [pip] dependencies, with the name that its pyproject.toml or setup.py has'
        )
        shell.add(command, Outcome.REFUSED, f"which package {clone.url} contains is not in this file: {hint}", text)
        return []
    entry = shell.imported.ledger[clone.entry]
    reason = f"required from the repository: {package}"
    shell.imported.ledger[clone.entry] = LedgerEntry(entry.source, entry.text, Outcome.TRANSLATED, reason)
    return [f"{package}{extras} @ {url}"]


def _package_of(url: str) -> str | None:
    """The package of a repository, if envspec's data names the repository; None otherwise."""
    repository = re.sub(r"\.git$|/$", "", url).lower()
    for row in load_facts().extensions:
        if any(page.lower().startswith(f"{repository}/") for page in row.pages):
            return row.package
    return None


def read_setup_py(shell: Shell, command: Command) -> None:
    """`python setup.py install`, `develop`."""
    option = "-e " if "develop" in command.words else ""
    if lines := _local(shell, command, ".", option):
        _read_lines(shell, command, lines)


#: Program -> its files of a project: the one that declares, and the lock.
PROJECT_FILES: Final = {
    "uv": ("pyproject.toml", "uv.lock"),
    "poetry": ("pyproject.toml", "poetry.lock"),
    "pixi": ("pixi.toml", "pixi.lock"),
}


def read_project(shell: Shell, command: Command) -> None:
    """`uv sync`, `poetry install`, `pixi install`."""
    declares, lock = PROJECT_FILES[command.words[0]]
    host = shell.host(declares)
    if host is None:
        reason = f"{declares} is not among the files that are copied from the project"
        shell.add(command, Outcome.REFUSED, reason)
        return
    shell.imported.include(host, command.source, command.text)
    found = shell.imported.find(host.with_name(lock)) if host.with_name(lock).is_file() else None
    if found is not None:
        shell.imported.run(found, host.with_name(lock))
    options = [*command.words, ""]
    for option, value in zip(options, options[1:], strict=False):
        if option in ("--extra", "--group", "--all-extras", "--all-groups", "--with", "-E", "--only-group"):
            text = f"{option} {value}" if not option.startswith("--all") else option
            reason = 'which groups and extras are required stands in the spec: [pip] groups = ["NAME"]'
            shell.add(command, Outcome.REFUSED, reason, text)


def read_python_version(shell: Shell, command: Command) -> None:
    """`uv venv --python 3.11`, `uv python install 3.11`, `virtualenv -p python3.11`, `pyenv install 3.11.9`."""
    found = re.search(r"(?:^|[ =@]|python|-p)(3\.\d+(?:\.\d+)?)(?=$| )", " ".join(command.words[1:]))
    if found:
        shell.imported.draft.pythons.append(Clue(found[1], command.source, command.text))
    reason = f"[env] python {found[1]}" if found else "needs nothing: an image has one environment"
    shell.add(command, Outcome.TRANSLATED, reason)


# conda

_CONDA_VALUED: Final = frozenset(
    {
        "-c",
        "--channel",
        "-n",
        "--name",
        "-p",
        "--prefix",
        "-f",
        "--file",
        "--solver",
        "-r",
        "--root-prefix",
        "--platform",
    }
)
#: conda packages whose version is that of CUDA.
_CONDA_CUDA: Final = frozenset({"pytorch-cuda", "cudatoolkit", "cuda-version", "cuda-toolkit", "cuda"})


def read_conda(shell: Shell, command: Command) -> None:
    """`conda install`, `create`, `env create`, `env update`, also mamba's and micromamba's."""
    verbs = ("install", "create", "update", "upgrade")
    words = command.words[next(at for at, word in enumerate(command.words) if word in verbs) + 1 :]
    given, specs = split_options(words, _CONDA_VALUED)
    before = len(shell.imported.ledger)
    add_channels(shell.imported, [value for option, value in given if option in ("-c", "--channel")])
    for option, value in given:
        if option in ("-f", "--file"):
            _conda_file(shell, command, value)
    for spec in specs:
        conda_spec(shell.imported, command.source, spec)
    if command.words[1] == "env" and not any(option in ("-f", "--file") for option, _ in given):
        _conda_file(shell, command, "environment.yml")
    if len(shell.imported.ledger) == before:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: no packages")


def add_channels(imported: Import, channels: Iterable[str]) -> None:
    """Channels, those that come first having priority."""
    imported.draft.channels += [each for each in dict.fromkeys(channels) if each not in imported.draft.channels]


def _conda_file(shell: Shell, command: Command, name: str) -> None:
    host, text = shell.host(name), f"--file {name}"
    if host is None:
        shell.add(command, Outcome.REFUSED, f"{name} is not among the files that are copied from the project", text)
    elif host.suffix in (".yml", ".yaml"):
        shell.imported.include(host, command.source, text)
    else:
        shell.add(command, Outcome.TRANSLATED, f"its lines, from {shell.imported.shown(host)}", text)
        for number, line in enumerate(shell.imported.read(host).splitlines(), start=1):
            if spec := line.partition("#")[0].strip():
                conda_spec(shell.imported, Source(shell.imported.shown(host), number), spec)


def conda_spec(imported: Import, source: Source, spec: str) -> None:
    """One match spec of a command line."""
    name, version = re.match(r"(?:.*::)?([^\s=<>!~\[]*)[\s=]*([\d.]*)", spec).groups() or ("", "")  # type: ignore[union-attr]
    if name in ("conda", "mamba", "pip", "micromamba"):
        imported.add(source, spec, Outcome.TRANSLATED, "needs nothing: envspec installs packages itself")
        return
    if name == "python":
        if version:
            imported.draft.pythons.append(Clue(version, source, spec))
        imported.add(source, spec, Outcome.TRANSLATED, f"[env] python {version}" if version else "[env] python")
        return
    try:
        written = read_match_spec(spec)
    except BadValue as error:
        imported.add(source, spec, Outcome.REFUSED, f"{error.found}; {error.hint}")
        return
    if name in _CONDA_CUDA and re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        imported.draft.cudas.append(Clue(".".join(version.split(".")[:2]), source, spec))
    imported.draft.conda.append((written, ""))
    outcome = Outcome.KEPT if written == spec else Outcome.TRANSLATED
    imported.add(source, spec, outcome, "" if written == spec else f"{written!r} in [conda] dependencies")


def read_conda_config(shell: Shell, command: Command) -> None:
    """`conda config --add channels conda-forge`."""
    words = command.words
    added = [
        words[at + 2] for at in range(len(words) - 2) if words[at + 1] == "channels" and words[at].startswith("--")
    ]
    if added and "--remove" not in words:
        add_channels(shell.imported, added)
        shell.add(command, Outcome.TRANSLATED, f"[conda] channels: {', '.join(added)}")
    else:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: envspec solves by the spec alone")


# The system's packages


class AptRow(NamedTuple):
    """names: a pattern of packages that a spec does not list."""

    names: str
    outcome: Outcome
    reason: str


#: The first that matches; all other packages are listed in [system] apt.
APT: Final = (
    AptRow(
        r"(lib)?python3?(\.\d+)?(-(dev|full|minimal|pip|venv|distutils|setuptools|wheel|virtualenv|lib2to3))?"
        r"|python-is-python3|pipx|virtualenv",
        Outcome.TRANSLATED,
        "needs nothing: the environment brings its Python, with its headers",
    ),
    AptRow(
        r"python3?-.+",
        Outcome.REFUSED,
        "a module of the system's Python, which the environment does not use: add its name on the index to [pip] dependencies",
    ),
    AptRow(
        r"cuda(-toolkit|-compiler|-nvcc)?-(?P<major>\d+)-(?P<minor>\d+)",
        Outcome.TRANSLATED,
        "[cuda] version {major}.{minor}, flavor devel",
    ),
    AptRow(
        r"cuda(-.+)?|nvidia-cuda-toolkit|lib(cudnn|nccl|cublas|cusparse|cusolver|cufft|curand|nvinfer|cutensor|npp).*",
        Outcome.TRANSLATED,
        "needs nothing: CUDA's libraries come from the wheels and the base image ([cuda] flavor)",
    ),
    AptRow(
        r".*[/*].*|.+\.deb", Outcome.REFUSED, "[system] apt takes names and exact versions: write which ones are meant"
    ),
)
_APT_VALUED: Final = frozenset({"-t", "--target-release", "-o", "--option", "-c", "--config-file"})


def read_apt(shell: Shell, command: Command) -> None:
    """`apt-get install`."""
    words = command.words[command.words.index("install") + 1 :]
    given, names = split_options(words, _APT_VALUED)
    for option, value in given:
        if option in ("-t", "--target-release"):
            reason = "a spec's packages come from the release's own archive: write the version that is meant"
            shell.add(command, Outcome.REFUSED, reason, f"{option} {value}")
    if not names:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: no packages")
    for name in names:
        add_system_package(shell, command, name)


def add_system_package(shell: Shell, command: Command, name: str) -> None:
    """One package of the system, with its version behind `=` if it has one."""
    draft = shell.imported.draft
    plain = name.partition("=")[0]
    if not shell.has_system:
        shell.add(command, Outcome.TRANSLATED, "needs nothing: it is only where the build ran", name)
        return
    for row in APT:
        if found := re.fullmatch(row.names, plain if row.outcome is Outcome.TRANSLATED else name):
            if found.groupdict().get("major"):
                cuda = f"{found['major']}.{found['minor']}"
                draft.cudas.append(Clue(cuda, command.source, name))
                draft.flavors.append(Clue("devel", command.source, name))
            if python := re.fullmatch(r"python(3\.\d+)(-.+)?", plain):
                draft.pythons.append(Clue(python[1], command.source, name))
            shell.add(command, row.outcome, row.reason.format(**found.groupdict()), name)
            return
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+(?:=[A-Za-z0-9.+~:-]+)?", name):
        shell.add(command, Outcome.NOT_UNDERSTOOD, "no name of a package", name)
        return
    if name not in draft.apt:
        draft.apt.append(name)
    shell.add(command, Outcome.KEPT, text=name)


# Everything else


def read_clone(shell: Shell, command: Command) -> None:
    """`git clone`."""
    words = command.words[command.words.index("clone") + 1 :]
    valued = {"-b", "--branch", "--depth", "-c", "--config", "-j", "--jobs", "-o", "--filter", "--origin", "--revision"}
    given, names = split_options(words, valued)
    if not names:
        shell.add(command, Outcome.NOT_UNDERSTOOD, "no repository")
        return
    url = re.sub(r"^git@([^:/]+):", r"ssh://git@\1/", names[0])
    folder = names[1] if len(names) > 1 else re.sub(r"\.git$", "", posixpath.basename(url.rstrip("/")))
    revision = next((value for option, value in given if option in ("-b", "--branch", "--revision")), "")
    shell.clones[shell.path(folder)] = Clone(url, revision, len(shell.imported.ledger))
    reason = f"an image has no sources of {url}: [image] copy puts a copy in the project there"
    shell.add(command, Outcome.REFUSED, reason)


def read_checkout(shell: Shell, command: Command) -> None:
    """`git checkout` in a cloned repository."""
    given, names = split_options(command.words, {"-C", "-b"})
    folder = shell.path(next((value for option, value in given if option == "-C"), "."))
    clone = shell.clones.get(folder)
    if clone is None or len(names) < 3:
        shell.add(command, Outcome.NOT_UNDERSTOOD, "not in a repository that was cloned before")
        return
    shell.clones[folder] = clone._replace(revision=names[2])
    shell.add(command, Outcome.TRANSLATED, f"the revision of {clone.url}")


def read_cd(shell: Shell, command: Command) -> None:
    """`cd`: later paths start there."""
    shell.workdir = shell.path(command.words[1] if len(command.words) > 1 else "/root")
    shell.add(command, Outcome.TRANSLATED, "paths after it start there")


def read_export(shell: Shell, command: Command) -> None:
    """`export NAME=VALUE`: of use for the commands after it."""
    for word in command.words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            assign(shell, command, name, value)
    if not any("=" in word for word in command.words):
        shell.add(command, Outcome.TRANSLATED, "needs nothing: its value is used after it")


def assign(shell: Shell, command: Command, name: str, value: str) -> None:
    """A variable of the script itself, with its entry."""
    shell.variables[name] = value
    text = f"{name}={value}"
    if name == "TORCH_CUDA_ARCH_LIST":
        gpus_of(value, command.source, text, shell.imported)
    else:
        shell.add(command, Outcome.TRANSLATED, "its value is used in the commands after it", text)


#: First words of a command, as a pattern -> what reads it. The first that matches.
READERS: Final[tuple[tuple[str, Reader], ...]] = (
    (r"pip install( .*)?", read_pip),
    (r"uv (pip (install|sync)|add)( .*)?", read_pip),
    (r"(uv sync|poetry install|pixi install)( .*)?", read_project),
    (r"poetry add [^@^]+", read_pip),
    (r"python setup\.py (.* )?(install|develop)( .*)?", read_setup_py),
    (
        r"uv (venv|python (install|pin))( .*)?|(python )?venv .*|virtualenv .*|pyenv (install|global) .*",
        read_python_version,
    ),
    (r"(conda|mamba|micromamba) (env )?(install|create|update|upgrade)( .*)?", read_conda),
    (r"(conda|mamba|micromamba) config .*", read_conda_config),
    (r"(apt|apt-get|aptitude|apt-install) (.* )?install( .*)?", read_apt),
    (r"git (.* )?clone .*", read_clone),
    (r"git (.* )?checkout .*", read_checkout),
    (r"(cd|pushd)( .*)?", read_cd),
    (r"export( .*)?", read_export),
)
