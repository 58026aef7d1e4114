"""Importer of devcontainer.json.

Its commands are read as those of the project's folder, which is mounted in the container.
Source: containers.dev, "Dev Container metadata reference" and "Development Container Specification".
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from os.path import normpath
from pathlib import Path
from typing import Final, NamedTuple

from envspec.importers.base_images import leave_replaced, read_base_image
from envspec.importers.conda_specs import add_name
from envspec.importers.dockerfile import read_build
from envspec.importers.pip import add_cuda
from envspec.importers.shell import CommandsDocument, read_script
from envspec.importers.shell_programs import add_system_package
from envspec.importers.shell_state import Command, Shell
from envspec.importers.types import Clue, Import, Outcome, Unreadable
from envspec.importers.variables import ignored, read_variable
from envspec.importers.yaml_lines import Value, parse_yaml, read_yaml

#: In characters: the parser takes six seconds for a megabyte.
MAX_CHARACTERS: Final = 1 << 18

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)")
_TOKEN: Final = re.compile(rf"(?P<string>{_STRING})|(?P<trailing>,(?=\s*[}}\]]))|\t")
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")


class Note(NamedTuple):
    """A row for keys that add nothing to a spec. keys: a pattern."""

    keys: str
    outcome: Outcome
    reason: str


NOTES: Final = (
    Note(
        r"runServices|customizations|extensions|settings|\$schema|devPort|userEnvProbe|waitFor|shutdownAction",
        Outcome.OUTSIDE,
        "it concerns the editor, not the environment",
    ),
    Note(
        r"portsAttributes|otherPortsAttributes",
        Outcome.OUTSIDE,
        "publish ports at the start: `envspec run --port HOST:CONTAINER`",
    ),
    Note(r"mounts|workspaceMount", Outcome.OUTSIDE, "folders are mounted at the start: `envspec run --mount SRC:DST`"),
    Note(
        r"remoteUser|containerUser|updateRemoteUserUID",
        Outcome.OUTSIDE,
        "`envspec run` starts containers as the caller",
    ),
    Note(r"init", Outcome.OUTSIDE, "`envspec run` has an init"),
    Note(r"overrideCommand|overrideFeatureInstallOrder", Outcome.OUTSIDE, "an image starts no program"),
    Note(
        r"privileged|capAdd|securityOpt",
        Outcome.OUTSIDE,
        "`envspec run` gives no more rights: start the image by the engine itself",
    ),
    Note(r"secrets", Outcome.OUTSIDE, "secrets are set at the start: `envspec run --env NAME`"),
    Note(r"initializeCommand", Outcome.OUTSIDE, "it runs on the host"),
    Note(
        r"postStartCommand|postAttachCommand",
        Outcome.OUTSIDE,
        "it runs at each start: `envspec run LOCK -- COMMAND`",
    ),
    Note(
        r"hostRequirements\.(cpus|memory|storage)",
        Outcome.OUTSIDE,
        "an image requires no machine: `envspec fit` compares",
    ),
    Note(r"build\.(cacheFrom|options)", Outcome.OUTSIDE, "options of the engine's build, which envspec does not need"),
)


class Feature(NamedTuple):
    """A row for features. name: a pattern of the reference without its version. apt: the package with the same."""

    name: str
    outcome: Outcome
    reason: str
    apt: str = ""


#: The first that matches; `python` and `nvidia-cuda` have readers.
FEATURES: Final = (
    Feature(
        r".*/(conda|anaconda|miniconda|miniforge|micromamba|mamba|uv|pixi|poetry|pipx-package|pip|hatch|pdm)(-.*)?",
        Outcome.OUTSIDE,
        "envspec installs packages itself",
    ),
    Feature(r".*/git", Outcome.TRANSLATED, "", "git"),
    Feature(r".*/git-lfs", Outcome.TRANSLATED, "", "git-lfs"),
    Feature(r".*/ffmpeg(-apt-get)?", Outcome.TRANSLATED, "", "ffmpeg"),
    Feature(r".*/(sshd|jupyterlab)", Outcome.TRANSLATED, "[services]"),
    Feature(
        r".*/(common-utils|docker.*|github-cli|kubectl.*|aws-cli|azure-cli|terraform|node)",
        Outcome.OUTSIDE,
        "a tool for people, not of the environment: keep it in devcontainer.json, on top of the image",
    ),
    Feature(
        r".*",
        Outcome.REFUSED,
        "a program of the system: [system] apt has it, or an image that [image] base names",
    ),
)


def read_devcontainer(path: Path, imported: Import) -> None:
    """Read a devcontainer.json, with comments and trailing commas.

    Raises:
        Unreadable: it can't be read, is not JSON, or is beyond the bounds.
    """
    text = imported.read(path)
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{imported.shown(path)} has more than {MAX_CHARACTERS >> 10} kB")
    document = parse_yaml(_as_yaml(text), path, imported, "JSON")
    folder = next((each.parent for each in path.parents if each.name == ".devcontainer"), path.parent)
    workdir = document.get("workspaceFolder").text or f"/workspaces/{folder.resolve().name}"
    shell = Shell(imported, imported.shown(path), folder, workdir=_VARIABLE.sub("", workdir) or "/")
    shell.copy(shell.workdir, folder)
    reader = _Reader(imported, path, shell, document)
    for key, value in document.keys.items():
        reader.read(key, value)
    leave_replaced(imported)


def _as_yaml(text: str) -> str:
    """JSON with comments as YAML of the same lines: without comments, trailing commas and tabs; strings by their value,
    since YAML does not have all of JSON's escapes.
    """
    plain = _COMMENT.sub(_without_comment, text)
    return _TOKEN.sub(_as_yaml_token, plain)


def _without_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])


def _as_yaml_token(found: re.Match[str]) -> str:
    if found["string"] is None:
        return " "
    try:
        return json.dumps(json.loads(found["string"]), ensure_ascii=False)
    except ValueError:
        return found["string"]


class _Reader(CommandsDocument):
    def read(self, key: str, value: Value) -> None:
        """A key of the document, or of a table in it."""
        read = _KEYS.get(key)
        note = next((note for note in NOTES if re.fullmatch(note.keys, key)), None)
        if read is not None:
            read(self, key, value)
        elif note is not None:
            self.add(key, value, note.outcome, note.reason)
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
        path = self.path.parent / value.text
        context = build.get("context").text or self.document.get("context").text
        # The context is the folder of devcontainer.json by default.
        contexts = [Path(normpath(self.path.parent / context))] if context else [self.path.parent, self.shell.context]
        if not all(map(self._is_inside, contexts)):
            self.add(key, value, Outcome.REFUSED, "its context is outside of the project")
            return
        args = {name: each.text for name, each in build.get("args").keys.items() if not _VARIABLE.search(each.text)}
        if not path.is_file():
            self.add(key, value, Outcome.REFUSED, f"there is no {self.imported.shown(path)}")
            return
        self.add(key, value, Outcome.TRANSLATED, f"its lines, from {self.imported.shown(path)}")
        read = partial(read_build, contexts=contexts, target=build.get("target").text, args=args)
        self.imported.run(read, path)

    def _is_inside(self, folder: Path) -> bool:
        """Whether a folder is in the repository: what is copied from another is none of a report."""
        tops = (*self.imported.tops, self.imported.root.resolve(), self.shell.context.resolve())
        return any(folder.resolve().is_relative_to(top) for top in tops)

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
            context = Path(normpath(path.parent / (build.text or build.get("context").text or ".")))
            file = context / (build.get("dockerfile").text or "Dockerfile")
            if not self._is_inside(context):
                self.imported.add(self.at(each), text, Outcome.REFUSED, "its context is outside of the project")
            elif (build.text or build.keys) and file.is_file():
                reason = f"its service {service}, from {self.imported.shown(file)}"
                self.imported.add(self.at(each), text, Outcome.TRANSLATED, reason)
                args = {name: own.text for name, own in build.get("args").keys.items() if "$" not in own.text}
                read = partial(read_build, contexts=[context], target=build.get("target").text, args=args)
                self.imported.run(read, file)
            elif image and not build.keys:
                read_base_image(image, self.at(each), text, self.imported)
            else:
                reason = f"its service {service} names no image, and no Dockerfile that is there"
                self.imported.add(self.at(each), text, Outcome.REFUSED, reason)

    def of_build(self, key: str, value: Value) -> None:
        """What decides how the Dockerfile is read."""
        self.add(key, value, Outcome.TRANSLATED, "the Dockerfile is read with it")

    def features(self, key: str, value: Value) -> None:
        del key
        for reference, options in value.keys.items():
            name = re.sub(r"(:[^/:@]*)?(@.*)?$", "", reference).lower()
            if name.endswith(("/python", "/python-launcher")):
                self._python(reference, options)
            elif name.endswith("/nvidia-cuda"):
                self._cuda(reference, options)
            elif name.endswith(("/apt-packages", "/apt-get-packages")):
                self._apt(reference, options)
            else:
                self._feature(reference, name, options)

    def _feature(self, reference: str, name: str, options: Value) -> None:
        row = next(row for row in FEATURES if re.fullmatch(row.name, name))
        if row.apt:
            if row.apt not in self.imported.draft.apt:
                self.imported.draft.apt.append(row.apt)
            self.add(reference, options, row.outcome, f"{row.apt} in [system] apt")
        else:
            if name.endswith(("/sshd", "/jupyterlab")):
                start = name.rpartition("/")[2].replace("jupyterlab", "jupyter-lab")
                self.imported.draft.starts.append(Clue(start, self.at(options), f"the feature {reference}"))
            self.add(reference, options, row.outcome, row.reason)

    def ports(self, key: str, value: Value) -> None:
        """Ports: of services, if their packages are required."""
        self.add(key, value, Outcome.OUTSIDE, "publish ports at the start: `envspec run --port HOST:CONTAINER`")
        for each in value.items:
            self.imported.draft.ports.append(Clue(each.text.rpartition(":")[2], self.at(value), key))

    def _python(self, reference: str, options: Value) -> None:
        version = options.get("version").text
        if re.fullmatch(r"3\.\d+(\.\d+)?", version):
            self.imported.draft.pythons.append(Clue(version, self.at(options), f"the feature {reference}"))
            self.add(reference, options, Outcome.TRANSLATED, f"[env] python {version}")
        else:
            self.add(reference, options, Outcome.TRANSLATED, "[env] python, of which it names no series")

    def _cuda(self, reference: str, options: Value) -> None:
        version, reasons = options.get("cudaVersion").text, []
        if found := re.fullmatch(r"(\d+\.\d+)(\.\d+)?", version):
            add_cuda(found[1], self.at(options), self.imported, f"the feature {reference}")
            reasons.append(f"[cuda] version {found[1]}")
        flavor = "devel" if options.get("installToolkit").text == "true" else ""
        if options.get("installCudnn").text == "true" or options.get("installCudnnDev").text == "true":
            flavor = f"cudnn-{flavor or 'runtime'}"
        if flavor:
            self.imported.draft.flavors.append(Clue(flavor, self.at(options), f"the feature {reference}"))
            reasons.append(f"[cuda] flavor {flavor}")
        self.add(reference, options, Outcome.TRANSLATED, "; ".join(reasons) or "[cuda]")

    def _apt(self, reference: str, options: Value) -> None:
        names = re.split(r"[,\s]+", options.get("packages").text)
        command = Command((), self.at(options), reference)
        for name in filter(None, names):
            add_system_package(self.shell, command, name)

    def gpu(self, key: str, value: Value) -> None:
        reason = "`envspec run` gives the container all GPUs if the lock uses CUDA"
        self.add(key, value, Outcome.OUTSIDE, reason)

    def run_args(self, key: str, value: Value) -> None:
        arguments = [each for each in value.items if each.is_scalar]
        at = 0
        while at < len(arguments):
            option = arguments[at]
            text = option.text
            if "=" not in text and at + 1 < len(arguments) and not arguments[at + 1].text.startswith("-"):
                at += 1
                text = f"{text}={arguments[at].text}"
            row = next((row for row in RUN_ARGUMENTS if re.fullmatch(row.keys, text)), None)
            outcome, reason = (row.outcome, row.reason) if row else (Outcome.OUTSIDE, _NO_ARGUMENT)
            self.imported.add(self.at(option), f"{key}: {text}", outcome, reason)
            at += 1

    def command(self, key: str, value: Value) -> None:
        """A command in one of its forms: a line for the shell, a list of words, or several commands by name."""
        for each in value.keys.values() if value.keys else [value]:
            words = [word.text for word in each.items]
            line = shlex.join(words) if words else each.text
            line = line.replace("${containerWorkspaceFolder}", self.shell.workdir)
            if not line.strip():
                self.add(key, each, Outcome.OUTSIDE, "it is empty")
            parts = [(each.line, f"{part}\n") for part in line.split("\n")]
            folder = self.shell.workdir
            read_script(self.shell, parts)
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


_NO_ARGUMENT: Final = "an argument of the engine: `envspec run` has --mount, --env, --port, --network and --gpus"
#: Arguments of `docker run`.
RUN_ARGUMENTS: Final = (
    Note(r"--gpus.*|--runtime=nvidia", Outcome.OUTSIDE, "`envspec run` gives all GPUs if the lock uses CUDA"),
    Note(r"--ipc=.*|--shm-size=.*", Outcome.OUTSIDE, "`envspec run` gives /dev/shm half of the memory"),
    Note(r"--init|--rm|-it|--name=.*|--hostname=.*", Outcome.OUTSIDE, "it concerns only the run"),
)

_KEYS: Final[Mapping[str, Callable[[_Reader, str, Value], None]]] = {
    "name": _Reader.name,
    "image": _Reader.image,
    "build": _Reader.below,
    "build.dockerfile": _Reader.dockerfile,
    "dockerFile": _Reader.dockerfile,
    **dict.fromkeys(("build.context", "context", "build.target", "build.args", "service"), _Reader.of_build),
    "dockerComposeFile": _Reader.compose,
    "features": _Reader.features,
    "hostRequirements": _Reader.below,
    "hostRequirements.gpu": _Reader.gpu,
    "runArgs": _Reader.run_args,
    **dict.fromkeys(("forwardPorts", "appPort"), _Reader.ports),
    **dict.fromkeys(("onCreateCommand", "updateContentCommand", "postCreateCommand"), _Reader.command),
    "containerEnv": _Reader.variables,
    "remoteEnv": _Reader.variables,
    "workspaceFolder": _Reader.workspace,
}
