"""Programs of the system in the shell scripts of images, and the tables of all commands that are read."""

from __future__ import annotations

import posixpath
import re
from typing import Final

from envspec.importers.pip import add_cuda
from envspec.importers.shell_python import (
    read_conda,
    read_conda_config,
    read_export_of_project,
    read_pip,
    read_pip_config,
    read_project,
    read_python_version,
    read_setup_py,
)
from envspec.importers.shell_state import Clone, Command, Reader, Shell, split_options, value_of
from envspec.importers.types import Clue, NamedLines, Outcome, Rank

# The system's packages


#: The first that matches; all other packages are listed in [system] apt.
APT: Final = (
    NamedLines(
        r"(lib)?python3?(\.\d+)?(-(dev|full|minimal|pip|venv|distutils|setuptools|wheel|virtualenv|lib2to3))?"
        r"|python-is-python3|pip|pipx|virtualenv",
        Outcome.OUTSIDE,
        "the environment brings its Python, with its headers",
    ),
    NamedLines(
        r"python3?-.+",
        Outcome.REFUSED,
        "a module for the system's Python, which the environment does not use: add the package to [pip] dependencies",
    ),
    NamedLines(
        r"cuda(-toolkit|-compiler|-nvcc)?-(?P<major>\d+)-(?P<minor>\d+)",
        Outcome.TRANSLATED,
        "[cuda] version {major}.{minor}, flavor devel",
    ),
    NamedLines(
        r"cuda(-.+)?|nvidia-cuda-toolkit|lib(cudnn|nccl|cublas|cusparse|cusolver|cufft|curand|nvinfer|cutensor|npp).*",
        Outcome.OUTSIDE,
        "CUDA's libraries come from the wheels and the base image ([cuda] flavor)",
    ),
)
#: Packages that newer releases do not have -> those that they only required.
#: Source: Ubuntu's package lists; libgl1-mesa-glx is in 22.04, as a package that depends on libgl1, and not in 24.04.
RENAMED: Final = {"libgl1-mesa-glx": "libgl1"}
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
        shell.add(command, Outcome.OUTSIDE, "no packages")
    for name in names:
        add_system_package(shell, command, name)


def add_system_package(shell: Shell, command: Command, name: str) -> None:
    """One package of the system, with its version behind `=` if it has one."""
    draft = shell.imported.draft
    plain = name.partition("=")[0]
    if python := re.fullmatch(r"python(3\.\d+)(-.+)?", plain):
        draft.pythons.append(Clue(python[1], command.source, name, Rank.SYSTEM))
    if not shell.has_system:
        shell.add(command, Outcome.OUTSIDE, "it is only where the build ran", name)
        return
    for row in APT:
        text = name if row.outcome.is_lost else plain
        if found := re.fullmatch(row.names, text):
            if found.groupdict().get("major"):
                add_cuda(f"{found['major']}.{found['minor']}", command.source, shell.imported, name)
                draft.flavors.append(Clue("devel", command.source, name))
            shell.add(command, row.outcome, row.reason.format(**found.groupdict()), name)
            return
    if "$" in name:
        shell.add(command, Outcome.NOT_UNDERSTOOD, "a value in its name is not in this file", name)
        return
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+(?:=[A-Za-z0-9.+~:-]+)?", name):
        shell.add(command, Outcome.REFUSED, "[system] apt accepts names and exact versions: write the names", name)
        return
    own = RENAMED.get(plain, name)
    if own not in draft.apt:
        draft.apt.append(own)
    if own == name:
        shell.add(command, Outcome.KEPT, text=name)
    else:
        shell.add(command, Outcome.TRANSLATED, f"{own}: newer releases have no {plain}, which only requires it", name)


# Everything else


def read_clone(shell: Shell, command: Command) -> None:
    """`git clone`."""
    words = command.words[command.words.index("clone") + 1 :]
    valued = {"-b", "--branch", "--depth", "-c", "--config", "-j", "--jobs", "-o", "--filter", "--origin", "--revision"}
    given, names = split_options(words, valued)
    if not names:
        shell.add(command, Outcome.OUTSIDE, "no repository")
        return
    url = re.sub(r"^git@([^:/]+):", r"ssh://git@\1/", names[0])
    folder = names[1] if len(names) > 1 else re.sub(r"\.git$", "", posixpath.basename(url.rstrip("/")))
    revision = value_of(given, ("-b", "--branch", "--revision"))
    shell.clones[shell.path(folder)] = Clone(url, revision)
    shell.add(command, Outcome.OUTSIDE, f"read where a command names it; an image has no sources of {url}")


def read_checkout(shell: Shell, command: Command) -> None:
    """`git checkout` in a cloned repository."""
    given, names = split_options(command.words, {"-C", "-b"})
    folder = shell.path(value_of(given, ("-C",), "."))
    clone = shell.clones.get(folder)
    if clone is None or len(names) < 3:
        shell.add(command, Outcome.OUTSIDE, "not in a repository that was cloned before")
        return
    shell.clones[folder] = clone._replace(revision=names[2])
    shell.add(command, Outcome.TRANSLATED, f"the revision of {clone.url}")


def read_python_link(shell: Shell, command: Command) -> None:
    """`ln -s /usr/bin/python3.11 /usr/bin/python`, and `update-alternatives` of the same."""
    found = re.search(r"python(3\.\d+)", " ".join(command.words))
    if found:
        # A later link replaces an earlier one; alternatives are installed in the order of their priorities, then set.
        pythons = shell.imported.draft.pythons
        shell.imported.draft.pythons = [each for each in pythons if each.kind != "link"]
        shell.use_python(command, found[1], f"python is python{found[1]}", "link")
    shell.add(command, Outcome.OUTSIDE, "`python` is the environment's")


def read_activate(shell: Shell, command: Command) -> None:
    """`source /opt/venv/bin/activate`, `deactivate`."""
    found = re.fullmatch(r"(.+)/bin/activate", command.words[-1])
    shell.active = shell.path(found[1]) if found else ""
    shell.add(command, Outcome.OUTSIDE, "an image has one environment, always active")


def read_cd(shell: Shell, command: Command) -> None:
    """`cd`: later paths start there."""
    shell.workdir = shell.path(command.words[1] if len(command.words) > 1 else "/root")
    shell.add(command, Outcome.OUTSIDE, "paths after it start there")


#: First words of a command without options, as a pattern -> what reads it. The first that matches.
INSTALLERS: Final[tuple[tuple[str, Reader], ...]] = (
    (r"pip (install|wheel)( .*)?", read_pip),
    (r"pip config (.* )?set (.* )?(global|install|site|user)\.((extra-)?index-url|find-links) .*", read_pip_config),
    (r"uv (pip (install|sync)|add)( .*)?", read_pip),
    (r"(uv sync|poetry install|pixi install)( .*)?", read_project),
    (r"(uv|poetry) export( .*)?", read_export_of_project),
    (r"python setup\.py (.* )?(install|develop)( .*)?", read_setup_py),
    (r"(conda|mamba|micromamba) (env )?(install|create|update|upgrade)( .*)?", read_conda),
    (r"(conda|mamba|micromamba) config .*", read_conda_config),
    (r"(apt|apt-get|aptitude|apt-install) (.* )?install( .*)?", read_apt),
)
#: The same of commands that decide where packages are installed to, or from.
OTHERS: Final[tuple[tuple[str, Reader], ...]] = (
    (
        r"uv (venv|python (install|pin))( .*)?|(python )?venv .*|virtualenv .*|pyenv (install|global) .*",
        read_python_version,
    ),
    (r"git (.* )?clone .*", read_clone),
    (r"git (.* )?checkout .*", read_checkout),
    (r"(cd|pushd)( .*)?", read_cd),
    (r"(ln|update-alternatives) .*(python|\bpip).*", read_python_link),
    (r"(source|\.) .*bin/activate|deactivate", read_activate),
)
