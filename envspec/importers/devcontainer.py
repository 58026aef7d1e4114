"""Importer of devcontainer.json.

Its commands are read as those of the project's folder, which is mounted in the container.
Source: containers.dev, "Dev Container metadata reference" and "Development Container Specification".
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os.path import normpath
from pathlib import Path
from typing import Final

from envspec.importers.base_images import leave_replaced, read_base_image
from envspec.importers.conda_specs import add_name
from envspec.importers.dockerfile import read_build
from envspec.importers.pip import add_cuda
from envspec.importers.shell import NO_PACKAGE, CommandsDocument, read_script
from envspec.importers.shell_programs import add_system_package
from envspec.importers.shell_state import Command, Shell, names_of
from envspec.importers.types import Clue, Import, Outcome, Unreadable
from envspec.importers.variables import ignored, read_variable
from envspec.importers.yaml_lines import parse_yaml, read_yaml
from envspec.io.yaml_lines import Value

#: In characters: the parser takes six seconds for a megabyte.
MAX_CHARACTERS: Final = 1 << 18

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)")
_TOKEN: Final = re.compile(rf"(?P<string>{_STRING})|(?P<trailing>,(?=\s*[}}\]]))|\t")
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")

_VERSION: Final = re.compile(r"(:[^/:@]*)?(@.*)?$")
#: Keys that add no package.
_OTHERS: Final = names_of(
    """$schema runServices customizations extensions settings devPort userEnvProbe waitFor shutdownAction
    hostRequirements portsAttributes otherPortsAttributes mounts workspaceMount remoteUser containerUser
    updateRemoteUserUID init runArgs overrideCommand overrideFeatureInstallOrder privileged capAdd securityOpt secrets
    initializeCommand postStartCommand postAttachCommand build.cacheFrom build.options"""
)
_AT_START: Final = "it concerns the editor or the start of a container: see `envspec run --help`"
#: Features that install one package of the system.
_APT_FEATURES: Final = {"git": "git", "git-lfs": "git-lfs", "ffmpeg": "ffmpeg", "ffmpeg-apt-get": "ffmpeg"}
#: Features that add nothing to an environment: installers, and tools for people.
_OTHER_FEATURES: Final = re.compile(
    r"(conda|anaconda|miniconda|miniforge|micromamba|mamba|uv|pixi|poetry|pipx-package|pip|hatch|pdm)(-.*)?"
    r"|common-utils|docker.*|github-cli|kubectl.*|aws-cli|azure-cli|terraform|node"
)


def read_devcontainer(path: Path, imported: Import) -> None:
    """Read a devcontainer.json, with comments and trailing commas.

    Raises:
        Unreadable: it can't be read, is not JSON, or is beyond the bounds.
    """
    text = imported.read(path)
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{imported.shown(path)} has more than {MAX_CHARACTERS >> 10} kB")
    # As YAML of the same lines: without comments, trailing commas and tabs; strings by their value, since YAML does not
    # have all of JSON's escapes.
    plain = _TOKEN.sub(_as_yaml_token, _COMMENT.sub(_without_comment, text))
    document = parse_yaml(plain, path, imported, "JSON")
    folder = next((each.parent for each in path.parents if each.name == ".devcontainer"), path.parent)
    workdir = document.get("workspaceFolder").text or f"/workspaces/{folder.resolve().name}"
    shell = Shell(imported, imported.shown(path), folder, workdir=_VARIABLE.sub("", workdir) or "/")
    shell.copy(shell.workdir, folder)
    reader = _DevcontainerReader(imported, path, shell, document)
    for key, value in document.keys.items():
        reader.read(key, value)
    leave_replaced(imported)


def _without_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])


def _as_yaml_token(found: re.Match[str]) -> str:
    if found["string"] is None:
        return " "
    try:
        return json.dumps(json.loads(found["string"]), ensure_ascii=False)
    except ValueError:
        return found["string"]


class _DevcontainerReader(CommandsDocument):
    def read(self, key: str, value: Value) -> None:
        """A key of the document, or of a table in it."""
        read = _KEYS.get(key)
        if read is not None:
            read(self, key, value)
        elif key in _OTHERS:
            self.add(key, value, Outcome.OUTSIDE, _AT_START)
        else:
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "envspec does not support this key of devcontainer.json")

    def name(self, key: str, value: Value) -> None:
        del key
        add_name(self.imported, self.at(value), value.text)

    def image(self, key: str, value: Value) -> None:
        if _VARIABLE.search(value.text):
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "a variable of the machine is in its name")
        else:
            read_base_image(value.text, self.at(value), f"{key}: {value.text}", self.imported)

    def dockerfile(self, key: str, value: Value) -> None:
        build = self.document.get("build")
        context = build.get("context").text or self.document.get("context").text
        # The context is the folder of devcontainer.json by default.
        contexts = [self.path.parent, self.shell.context]
        if context:
            contexts = [Path(normpath(self.path.parent / context))]
        self._build(value, f"{key}: {value.text}", self.path.parent / value.text, contexts, build)

    def compose(self, key: str, value: Value) -> None:
        """The service of a compose file: its Dockerfile, or its image."""
        service = self.document.get("service").text
        for each in value.items or (value,):
            path = Path(normpath(self.path.parent / each.text))
            text = f"{key}: {each.text}"
            if not path.is_file():
                self.imported.add(self.at(each), text, Outcome.REFUSED, f"there is no {self.imported.shown(path)}")
                continue
            found = read_yaml(path, self.imported).get("services", service)
            build, image = found.get("build"), found.get("image").text
            if build.text or build.keys:
                context = Path(normpath(path.parent / (build.text or build.get("context").text or ".")))
                self._build(each, text, context / (build.get("dockerfile").text or "Dockerfile"), [context], build)
            elif image:
                read_base_image(image, self.at(each), text, self.imported)
            else:
                reason = f"its service {service} names no image and no Dockerfile"
                self.imported.add(self.at(each), text, Outcome.REFUSED, reason)

    def _build(self, value: Value, text: str, path: Path, contexts: Sequence[Path], build: Value) -> None:
        """Read a Dockerfile. build: the table with its target and arguments."""
        if not all(map(self._is_inside, contexts)):
            self.imported.add(self.at(value), text, Outcome.REFUSED, "its context is outside of the project")
        elif not path.is_file():
            self.imported.add(self.at(value), text, Outcome.REFUSED, f"there is no {self.imported.shown(path)}")
        else:
            reason = f"its lines, from {self.imported.shown(path)}"
            self.imported.add(self.at(value), text, Outcome.TRANSLATED, reason)
            args = {name: each.text for name, each in build.get("args").keys.items() if "$" not in each.text}
            read = partial(read_build, contexts=contexts, target=build.get("target").text, args=args)
            self.imported.run(read, path)

    def _is_inside(self, folder: Path) -> bool:
        """Whether a folder is in the repository: what is copied from another is none of a report."""
        tops = (*self.imported.tops, self.imported.root.resolve(), self.shell.context.resolve())
        return any(folder.resolve().is_relative_to(top) for top in tops)

    def of_build(self, key: str, value: Value) -> None:
        """What decides how the Dockerfile is read."""
        self.add(key, value, Outcome.TRANSLATED, "the Dockerfile is read with it")

    def features(self, key: str, value: Value) -> None:
        del key
        for reference, options in value.keys.items():
            name = _VERSION.sub("", reference).lower().rpartition("/")[2]
            if name in _APT_FEATURES or name in ("apt-packages", "apt-get-packages"):
                names = _APT_FEATURES.get(name) or options.get("packages").text
                for each in filter(None, re.split(r"[,\s]+", names)):
                    add_system_package(self.shell, Command((), self.at(options), reference), each)
            elif name in ("python", "python-launcher"):
                self._python(reference, options)
            elif name == "nvidia-cuda":
                self._cuda(reference, options)
            elif name in ("sshd", "jupyterlab"):
                start = name.replace("jupyterlab", "jupyter-lab")
                self.imported.draft.starts.append(Clue(start, self.at(options), f"the feature {reference}"))
                self.add(reference, options, Outcome.TRANSLATED, "[services]")
            elif _OTHER_FEATURES.fullmatch(name):
                self.add(reference, options, Outcome.OUTSIDE, NO_PACKAGE)
            else:
                reason = "a program of the system: [system] apt has it, or an image that [image] base names"
                self.add(reference, options, Outcome.REFUSED, reason)

    def _python(self, reference: str, options: Value) -> None:
        version = options.get("version").text
        if re.fullmatch(r"3\.\d+(\.\d+)?", version):
            self.imported.draft.pythons.append(Clue(version, self.at(options), f"the feature {reference}"))
        self.add(reference, options, Outcome.TRANSLATED, f"[env] python {version}")

    def _cuda(self, reference: str, options: Value) -> None:
        flavor = "devel" if options.get("installToolkit").text == "true" else ""
        if "true" in (options.get("installCudnn").text, options.get("installCudnnDev").text):
            flavor = f"cudnn-{flavor or 'runtime'}"
        why = f"the feature {reference}"
        if found := re.fullmatch(r"(\d+\.\d+)(\.\d+)?", options.get("cudaVersion").text):
            add_cuda(found[1], self.at(options), self.imported, why)
        if flavor:
            self.imported.draft.flavors.append(Clue(flavor, self.at(options), why))
        self.add(reference, options, Outcome.TRANSLATED, "[cuda]")

    def ports(self, key: str, value: Value) -> None:
        """Ports: of services, if their packages are required."""
        self.add(key, value, Outcome.OUTSIDE, "publish ports at the start: `envspec run --port HOST:CONTAINER`")
        for each in value.items:
            self.imported.draft.ports.append(Clue(each.text.rpartition(":")[2], self.at(value), key))

    def command(self, key: str, value: Value) -> None:
        """A command in one of its forms: a line for the shell, a list of words, or several commands by name."""
        for each in [*value.keys.values()] or [value]:
            words = [word.text for word in each.items]
            line = shlex.join(words) or each.text
            line = line.replace("${containerWorkspaceFolder}", self.shell.workdir)
            if not line.strip():
                self.add(key, each, Outcome.OUTSIDE, "it is empty")
            folder = self.shell.workdir
            read_script(self.shell, [(each.line, f"{part}\n") for part in line.split("\n")])
            self.shell.workdir = folder

    def variables(self, key: str, value: Value) -> None:
        for name, each in value.keys.items():
            text = f"{key}: {name}={each.text}"
            if _VARIABLE.search(each.text) and ignored(name) is None:
                reason = "it depends on the machine: `envspec run --env NAME` passes the caller's value"
                self.imported.add(self.at(each), text, Outcome.REFUSED, reason)
            else:
                read_variable(name, each.text, self.at(each), text, self.imported)

    def workspace(self, key: str, value: Value) -> None:
        if value.text.startswith("/") and not _VARIABLE.search(value.text):
            self.imported.draft.workdir = value.text
            self.add(key, value, Outcome.TRANSLATED, f"[image] workdir {value.text}")
        else:
            self.add(key, value, Outcome.OUTSIDE, "`envspec run` mounts the current folder")


_KEYS: Final[Mapping[str, Callable[[_DevcontainerReader, str, Value], None]]] = {
    "name": _DevcontainerReader.name,
    "image": _DevcontainerReader.image,
    "build": _DevcontainerReader.below,
    **dict.fromkeys(("build.dockerfile", "dockerFile"), _DevcontainerReader.dockerfile),
    **dict.fromkeys(
        ("build.context", "context", "build.target", "build.args", "service"), _DevcontainerReader.of_build
    ),
    "dockerComposeFile": _DevcontainerReader.compose,
    "features": _DevcontainerReader.features,
    **dict.fromkeys(("forwardPorts", "appPort"), _DevcontainerReader.ports),
    **dict.fromkeys(("onCreateCommand", "updateContentCommand", "postCreateCommand"), _DevcontainerReader.command),
    **dict.fromkeys(("containerEnv", "remoteEnv"), _DevcontainerReader.variables),
    "workspaceFolder": _DevcontainerReader.workspace,
}
