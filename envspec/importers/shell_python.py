"""`pip install`, `uv sync`, `conda install` and their like -> the draft of a spec."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from envspec.documents import list_of, table_of
from envspec.facts import load_facts
from envspec.importers import conda_specs
from envspec.importers.conda_specs import add_channel
from envspec.importers.pip import add_index, add_requirement, is_flag, torch_backend
from envspec.importers.pyproject import read_pyproject
from envspec.importers.requirements import add_line
from envspec.importers.shell_state import (
    Clone,
    Command,
    InstallSelection,
    Shell,
    names_of,
    split_options,
    value_of,
    values_of,
)
from envspec.importers.toml_lines import TomlFile, items_of
from envspec.importers.types import Outcome, Source
from envspec.names import normalised
from envspec.origins import PYTORCH_PAGES

# Options of pip and uv. Sources: their references of the command line (pip 25.3, uv 0.9).

#: Those that a requirements file has too -> as it has them.
_LINES: Final = {
    **dict.fromkeys(("-r", "--requirement", "--requirements"), "-r"),
    **dict.fromkeys(("-c", "--constraint", "--constraints"), "-c"),
    **dict.fromkeys(("-e", "--editable"), "-e"),
    **dict.fromkeys(("-i", "--index-url", "--default-index", "--pypi-url"), "--index-url"),
    **dict.fromkeys(("--extra-index-url", "--index"), "--extra-index-url"),
    **dict.fromkeys(("-f", "--find-links"), "--find-links"),
    **dict.fromkeys(("--no-deps", "--no-dependencies"), "--no-deps"),
    **{name: name for name in ("--no-binary", "--only-binary", "--trusted-host")},
    **{name: name for name in ("--pre", "--no-index", "--prefer-binary", "--require-hashes", "--no-build-isolation")},
}
#: Those that no spec has, all with a value -> what to do.
_REFUSED: Final = {
    **dict.fromkeys(
        ("-C", "--config-settings", "--config-setting", "--global-option", "--build-option", "--install-option"),
        "a spec has no options of builds, only their variables: [build.NAME] env",
    ),
    **dict.fromkeys(("--override", "--overrides", "--excludes"), "write its lines into [pip] overrides"),
    "--group": 'add the group to the spec: `dependencies_from = ["group:NAME"]`',
    **dict.fromkeys(
        ("--platform", "--python-version", "--implementation", "--abi", "--python-platform"),
        "a spec has the platforms and the Python in [env]",
    ),
}
#: Those with a value that concern the run of the program, or are read elsewhere.
_OTHERS_WITH_VALUE: Final = names_of(
    """--torch-backend --extra -w --wheel-dir -t --target --prefix --root -p --python --cache-dir --progress-bar
    --root-user-action --timeout --default-timeout --retries --resume-retries --src --cert --client-cert --proxy --log
    --upgrade-strategy --use-feature --use-deprecated --exists-action --link-mode --index-strategy --keyring-provider
    --report --allow-insecure-host --upgrade-package -P --reinstall-package --resolution --config-file --directory
    --project"""
)
_OTHERS: Final = names_of(
    """-q -v -U -I -n -y --quiet --verbose --upgrade --user --system --break-system-packages --no-input --isolated
    --no-cache-dir --no-cache --disable-pip-version-check --no-warn-script-location --no-warn-conflicts --use-pep517
    --no-use-pep517 --compile --no-compile --compile-bytecode --force-reinstall --ignore-installed --reinstall
    --no-python-version-warning --require-virtualenv --no-color --no-progress --native-tls --offline --refresh --strict
    --exact --dry-run --no-config --active --no-sync --frozen --locked --inexact --no-clean"""
)
_VALUED: Final = {each for each in _LINES if not is_flag(each)} | _REFUSED.keys() | _OTHERS_WITH_VALUE
#: Packages that install packages: envspec does that itself.
INSTALLERS: Final = frozenset(
    {"pip", "wheel", "uv", "poetry", "pipenv", "pipx", "virtualenv", "pdm", "conda", "pip-tools"}
)

#: Addresses of mirrors of the default index.
_MIRROR: Final = re.compile(r"/pypi/|//pypi\.")
_VERBS: Final = frozenset({"install", "add", "sync", "wheel"})


def read_pip(shell: Shell, command: Command) -> None:
    """`pip install`, `uv pip install`, `uv add`, and `pip wheel`, whose wheels are installed later."""
    verb = next(at for at, word in enumerate(command.words) if word in _VERBS)
    given, names = split_options(command.words[verb + 1 :], _VALUED)
    if command.words[:3] == ("uv", "pip", "sync"):
        given += [("-r", name) for name in names]
        names = []
    environment = _target_of(shell, command, given)
    if shell.is_elsewhere(environment):
        reason = f"{environment} is not {shell.main}, the environment of the image: it needs a spec of its own"
        shell.add(command, Outcome.REFUSED, reason)
        return
    own = [name for name in map(_package_name, names) if name not in INSTALLERS]
    if own or any(_LINES.get(option) in ("-r", "-e") for option, _ in given):
        shell.packages.append(command.source)
        if command.python:
            shell.use_python(command, command.python, f"python{command.python} -m {command.words[0]}")
    before = len(shell.imported.ledger)
    packages = tuple(filter(None, own))
    extras = frozenset(values_of(given, ("--extra",)))
    for option, value in given:
        _read_option(shell, command, option, value, packages, extras)
    for name in names:
        _read_name(shell, command, name)
    if len(shell.imported.ledger) == before:
        shell.add(command, Outcome.OUTSIDE, "no packages")


def _target_of(shell: Shell, command: Command, given: Sequence[tuple[str, str]]) -> str:
    """The environment that a command installs to, as far as it names one; empty for the usual one."""
    for option, value in given:
        if option in ("--prefix", "--target", "-t"):
            shell.environments.setdefault(shell.path(value))
            return shell.path(value)
        if option in ("-w", "--wheel-dir"):
            shell.built.setdefault(shell.path(value))
        if option in ("-p", "--python") and value.startswith("/"):
            return re.sub(r"/bin/[^/]*$", "", value)
    return command.environment


def _package_name(text: str) -> str:
    """The package that a requirement names, normalised; empty for paths and addresses."""
    found = re.match(r"[A-Za-z0-9][\w.-]*(?![\w.-]*[:/])", text)
    return normalised(found[0]) if found else ""


def _read_option(
    shell: Shell, command: Command, option: str, value: str, packages: tuple[str, ...], extras: frozenset[str]
) -> None:
    text = f"{option} {value}".rstrip()
    if option in _LINES:
        _read_line(shell, command, option, value, packages, extras)
    elif option == "--torch-backend":
        shell.add(command, *torch_backend(value, command.source, shell.imported), text)
    elif option in _REFUSED:
        shell.add(command, Outcome.REFUSED, _REFUSED[option], text)
    elif option not in _OTHERS and option not in _OTHERS_WITH_VALUE:
        shell.add(command, Outcome.NOT_UNDERSTOOD, f"envspec does not support this option of {command.words[0]}", text)


def _read_line(
    shell: Shell, command: Command, option: str, value: str, packages: tuple[str, ...], extras: frozenset[str]
) -> None:
    """An option that a requirements file has too."""
    line, text = _LINES[option], f"{option} {value}".rstrip()
    if line == "--no-build-isolation" and packages and all(map(_has_build, packages)):
        shell.add(command, Outcome.OUTSIDE, "they are built beside the lock's torch", text)
    elif (line == "--find-links" and shell.is_built(value)) or (line == "--no-index" and shell.built):
        shell.add(command, Outcome.OUTSIDE, "the packages of these wheels are in the spec", text)
    elif line == "-e":
        _read_local(shell, command, value, "-e ")
    elif line in ("-r", "-c") and "://" not in value:
        _read_file(shell, command, line, value, extras)
    elif line == "--index-url" and packages and not PYTORCH_PAGES.match(value) and not _MIRROR.search(value):
        shell.add(command, *add_index(value, command.source, shell.imported, packages=packages), text)
    else:
        if value:
            line += f" {shlex.quote(value)}"
        _add(shell, command, line)


def read_pip_config(shell: Shell, command: Command) -> None:
    """`pip config set global.index-url URL`."""
    *_, key, value = command.words
    _add(shell, command, f"--{key.partition('.')[2]} {shlex.quote(value)}")


def _add(shell: Shell, command: Command, line: str) -> None:
    add_line(line, command.source, shell.imported, shell.context)


def _read_file(shell: Shell, command: Command, option: str, name: str, extras: frozenset[str]) -> None:
    text = f"{option} {name}"
    host = shell.host(name)
    export = shell.exports.get(shell.path(name))
    if export is not None:
        _include_project(shell, command, *export, text)
    elif host is None:
        shell.add(command, Outcome.REFUSED, _missing(shell, name), text)
    elif option == "-r":
        # pip reads a file of any name.
        importer = shell.imported.find(host) or shell.imported.find(Path("requirements.txt"))
        if host.name == "pyproject.toml" and importer is not None:
            importer = partial(read_pyproject, extras=extras)
        shell.imported.include(host, command.source, text, importer)
    else:
        _add(shell, command, f"{option} {shlex.quote(_relative(host, shell.context))}")


def _missing(shell: Shell, name: str) -> str:
    """Why a file that a command names can't be read."""
    if (cloned := shell.clone(name)) is not None:
        return f"{name} is a file of {cloned[0].url}: save it in the project, and name it to `envspec init`"
    return f"{name} is not among the files that are copied from the project: name it to `envspec init` as well"


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _read_name(shell: Shell, command: Command, name: str) -> None:
    plain = normalised(re.split(r"[\[<>=!~;@ ]", name, maxsplit=1)[0])
    is_path = name.startswith((".", "/", "~", "file:")) or ("/" in name and "://" not in name and "@" not in name)
    if plain in INSTALLERS:
        shell.add(command, Outcome.OUTSIDE, "envspec installs packages itself", name)
    elif is_path or (re.search(r"\.(whl|tar\.gz|zip)$", name) and "://" not in name):
        _read_local(shell, command, name, "")
    else:
        _add(shell, command, name)


def _read_local(shell: Shell, command: Command, name: str, option: str) -> None:
    """A local project or file, or the sources of a repository that was cloned."""
    text = f"{option}{name}"
    found = re.fullmatch(r"(?:file:(?://)?)?(?P<path>[^\[]*)(?P<extras>(?:\[.*\])?)", name)
    path, extras = (found["path"] or ".", found["extras"]) if found else (name, "")
    host, cloned = shell.host(path), shell.clone(path)
    declares = shell.host(f"{path}/pyproject.toml") or shell.host(f"{path}/setup.py")
    if host is None and cloned is None and declares is not None:
        host = declares.parent
    if re.match(r"(?!file:)[a-z+]+://", name):
        _add(shell, command, text)
    elif host is not None:
        line = _relative(host, shell.context)
        if not line.startswith("."):
            line = f"./{line}"
        line += extras
        notes: tuple[str, ...] = ()
        if option:
            notes = ("not editable: a wheel is built of it",)
        verdict = add_requirement(line, command.source, shell.imported, shell.context, notes=notes)
        shell.add(command, *verdict, text)
    elif shell.is_built(path):
        shell.add(command, Outcome.OUTSIDE, "the packages of these wheels are in the spec", text)
    elif cloned is None:
        shell.add(command, Outcome.REFUSED, _missing(shell, path), text)
    else:
        _read_clone(shell, command, *cloned, extras, text)


def _read_clone(shell: Shell, command: Command, clone: Clone, folder: str, extras: str, text: str) -> None:
    url, package = f"git+{clone.url}", _package_of(clone.url)
    if clone.revision:
        url += f"@{clone.revision}"
    if folder:
        url += f"#subdirectory={folder}"
    if package is None or folder:
        hint = (
            f'add "NAME{extras} @ {url}" to [pip] dependencies, with the name that its pyproject.toml or setup.py has'
        )
        shell.add(command, Outcome.REFUSED, f"which package {clone.url} contains is not in this file: {hint}", text)
        return
    _add(shell, command, f"{package}{extras} @ {url}")


def _package_of(url: str) -> str | None:
    """The package of a repository, if envspec's data names the repository; None otherwise."""
    repository = re.sub(r"\.git$|/$", "", url).lower()
    for row in load_facts().extensions:
        if any(page.lower().startswith(f"{repository}/") for page in row.pages):
            return row.package
    return None


def _has_build(package: str) -> bool:
    """Whether envspec knows how a package is compiled."""
    return any(row.package == normalised(package) for row in load_facts().extensions)


def read_setup_py(shell: Shell, command: Command) -> None:
    """`python setup.py install`, `develop`."""
    _read_local(shell, command, ".", "-e " if "develop" in command.words else "")


def read_project(shell: Shell, command: Command) -> None:
    """`uv sync`, `poetry install`, `pixi install`, with the extras and groups that they name."""
    declares = "pixi.toml" if command.words[0] == "pixi" else "pyproject.toml"
    environment = command.environment or shell.variables.get("UV_PROJECT_ENVIRONMENT") or ".venv"
    shell.environments.setdefault(shell.path(environment))
    shell.packages.append(command.source)
    host = shell.host(declares)
    if host is None and shell.clone(".") is None and (shell.context / declares).is_file():
        # What copied it there is not understood, and a project has one.
        host = shell.context / declares
    if host is None:
        shell.add(command, Outcome.REFUSED, _missing(shell, declares))
        return
    _include_project(shell, command, host, read_selection(shell, command, host), command.text)


def _include_project(shell: Shell, command: Command, project: Path, selection: InstallSelection, text: str) -> None:
    """Read the project, with the extras and groups that all commands install of it."""
    selection |= shell.syncs.get(project, InstallSelection())
    shell.syncs[project] = selection
    importer = shell.imported.find(project)
    if importer is not None and project.name == "pyproject.toml":
        importer = partial(read_pyproject, extras=selection.extras, groups=selection.groups)
    shell.imported.include(project, command.source, text, importer)


def read_export_of_project(shell: Shell, command: Command) -> None:
    """`uv export`, `poetry export`: a file that a later command installs."""
    host = shell.host("pyproject.toml")
    given, _ = split_options(command.words[2:], _EXTRAS | _GROUPS | _NO_GROUPS | _OUTPUTS)
    output = value_of(given, _OUTPUTS, command.output)
    if host is not None and output:
        shell.exports[shell.path(output)] = host, read_selection(shell, command, host)
    shell.add(command, Outcome.OUTSIDE, "read where a command names its file")


_OUTPUTS: Final = frozenset({"-o", "--output", "--output-file"})

#: Options of uv and Poetry that take names; Poetry's take several, separated by commas or blanks.
_EXTRAS: Final = frozenset({"--extra", "--extras", "-E"})
_GROUPS: Final = frozenset({"--group", "--with", "--only-group", "--only"})
_NO_GROUPS: Final = frozenset({"--no-group", "--without"})
_NO_DEFAULTS: Final = frozenset({"--no-default-groups", "--only-group", "--only"})


def read_selection(shell: Shell, command: Command, project: Path) -> InstallSelection:
    """The extras and groups that a command installs, those that the tool takes by default among them."""
    given = _known_options(shell, command)
    names = {option for option, _ in given}
    extras, groups = {*values_of(given, _EXTRAS)}, {*values_of(given, _GROUPS)}
    if project.suffix == ".toml":
        file = TomlFile(project, shell.imported)
        if "--all-extras" in names:
            extras |= {*file.table("project", "optional-dependencies"), *file.table("tool", "poetry", "extras")}
        if "--all-groups" in names:
            groups |= groups_of(file)
        # `poetry export` has the main group alone.
        is_export = command.words[:2] == ("poetry", "export")
        # Of Poetry, it means `--only main`.
        is_without = not names.isdisjoint(_NO_DEFAULTS) or (command.words[0] == "poetry" and "--no-dev" in names)
        if not is_export and not is_without:
            groups |= default_groups(file, command.words[0])
    if "--no-dev" in names:
        groups.discard("dev")
    groups.difference_update(values_of(given, _NO_GROUPS))
    return InstallSelection(frozenset(map(normalised, extras)), frozenset(map(normalised, groups - {"main"})))


def _known_options(shell: Shell, command: Command) -> list[tuple[str, str]]:
    """Options of `uv sync` and its like, each with one name. Those that need another value have an entry instead."""
    options, others = split_options(command.words[2:], _EXTRAS | _GROUPS | _NO_GROUPS | _OUTPUTS)
    options += [("", other) for other in others]
    given: list[tuple[str, str]] = []
    for option, value in options:
        if any(unknown in value for unknown in command.unknown):
            shell.add(command, Outcome.NOT_UNDERSTOOD, "its value is not in this file", f"{option} {value}")
        else:
            given += [(option, name) for name in re.split(r"[,\s]+", value)]
    return given


def groups_of(file: TomlFile) -> set[str]:
    """The groups of a project, of whatever tool."""
    found = {*file.table("dependency-groups"), *file.table("tool", "poetry", "group")}
    if list_of(file.data, "tool", "uv", "dev-dependencies") or file.table("tool", "poetry", "dev-dependencies"):
        found.add("dev")
    return found


def default_groups(file: TomlFile, tool: str) -> set[str]:
    """The groups that a tool installs if its command names none."""
    found = groups_of(file)
    if tool == "poetry":
        tables = file.table("tool", "poetry", "group")
        optional = {name for name in tables if table_of(tables, name).get("optional") is True}
        return (found & {*tables, "dev"}) - optional
    chosen = file.table("tool", "uv").get("default-groups", ["dev"])
    if chosen == "all":
        return found
    return found.intersection(map(str, items_of(chosen)))


def read_python_version(shell: Shell, command: Command) -> None:
    """`uv venv --python 3.11`, `uv python install 3.11`, `virtualenv -p python3.11`, `pyenv install 3.11.9`."""
    found = re.search(r"(?:^|[ =@]|python|-p)(3\.\d+(?:\.\d+)?)(?=$| )", " ".join(command.words[1:]))
    version = found[1] if found else command.python
    if command.words[0] in ("venv", "virtualenv") or command.words[:2] == ("uv", "venv"):
        _, names = split_options(command.words[1 + (command.words[0] == "uv") :], _VENV_VALUED)
        usual = shell.variables.get("UV_PROJECT_ENVIRONMENT") or ".venv"
        folder = shell.path([usual, *names][-1])
        shell.environments.setdefault(folder)
        if shell.is_elsewhere(folder):
            version = ""
    if version:
        shell.use_python(command, version, command.text)
    reason = f"[env] python {version}" if version else "needs nothing: an image has one environment"
    shell.add(command, Outcome.TRANSLATED, reason)


_VENV_VALUED: Final = frozenset({"-p", "--python", "--prompt", "--index-url", "--seed-packages"})


# conda

_CONDA_VALUED: Final = names_of("-c --channel -n --name -p --prefix -f --file --solver -r --root-prefix --platform")


def read_conda(shell: Shell, command: Command) -> None:
    """`conda install`, `create`, `env create`, `env update`, also mamba's and micromamba's."""
    verbs = ("install", "create", "update", "upgrade")
    words = command.words[next(at for at, word in enumerate(command.words) if word in verbs) + 1 :]
    given, specs = split_options(words, _CONDA_VALUED)
    shell.packages.append(command.source)
    before = len(shell.imported.ledger)
    for option, value in given:
        if option in ("-c", "--channel"):
            add_channel(shell.imported, command.source, value, f"{option} {value}")
        elif option in ("-f", "--file"):
            _read_conda_file(shell, command, value)
        elif option in ("-p", "--prefix", "-r", "--root-prefix"):
            shell.environments.setdefault(shell.path(value))
    for spec in specs:
        _read_spec(shell, command.source, spec)
    if command.words[1] == "env" and not values_of(given, ("-f", "--file")):
        _read_conda_file(shell, command, "environment.yml")
    if len(shell.imported.ledger) == before:
        shell.add(command, Outcome.OUTSIDE, "no packages")


def _read_spec(shell: Shell, source: Source, spec: str) -> None:
    if re.split(r"[\s=<>!~\[]", spec, maxsplit=1)[0] in ("conda", "mamba", "pip", "micromamba"):
        shell.imported.add(source, spec, Outcome.OUTSIDE, "envspec installs packages itself")
    else:
        conda_specs.add_requirement(shell.imported, source, spec)


def _read_conda_file(shell: Shell, command: Command, name: str) -> None:
    host, text = shell.host(name), f"--file {name}"
    if host is None:
        shell.add(command, Outcome.REFUSED, _missing(shell, name), text)
    elif host.suffix in (".yml", ".yaml", ".lock"):
        shell.imported.include(host, command.source, text)
    else:
        shell.add(command, Outcome.TRANSLATED, f"its lines, from {shell.imported.shown(host)}", text)
        for number, line in enumerate(shell.imported.read(host).splitlines(), start=1):
            if spec := line.partition("#")[0].strip():
                _read_spec(shell, Source(shell.imported.shown(host), number), spec)


def read_conda_config(shell: Shell, command: Command) -> None:
    """`conda config --add channels conda-forge`."""
    given, names = split_options(command.words[2:], {"--add", "--append", "--prepend", "--remove"})
    if not names or ("--remove", "channels") in given or "channels" not in [value for _, value in given]:
        shell.add(command, Outcome.OUTSIDE, "envspec solves by the spec alone")
        return
    for channel in names:
        add_channel(shell.imported, command.source, channel, command.text)
