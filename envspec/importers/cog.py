"""Importer of cog.yaml.

Source: replicate/cog, docs/yaml.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from envspec.importers.pip import add_cuda
from envspec.importers.requirements import add_line
from envspec.importers.shell import CommandsDocument, read_script
from envspec.importers.shell_programs import add_system_package
from envspec.importers.shell_state import Command, Shell
from envspec.importers.types import Clue, Import, Outcome
from envspec.importers.variables import read_variable
from envspec.importers.yaml_lines import read_yaml
from envspec.io.yaml_lines import Value

_SERVER: Final = "cog's server is not part of an image: `envspec run LOCK -- ...` starts a program"
#: Keys that concern no package -> why.
NOTES: Final = {
    "build.cudnn": "cuDNN is in the wheels that torch requires, or in [cuda] flavor cudnn-runtime",
    "build.fast": "it concerns only cog's build",
    "image": "`envspec image build --push NAME` names the image",
    **dict.fromkeys(("build.cog_runtime", "build.sdk_version", "predict", "train", "run", "concurrency"), _SERVER),
    "weights": "models are not part of an image: `envspec run` mounts the Hugging Face cache",
    "tests": "[conformance] has the suite's checks; run your own by `envspec run LOCK -- ...`",
}


def read_cog(path: Path, imported: Import) -> None:
    """Read a cog.yaml.

    Raises:
        Unreadable: it can't be read, is not YAML, or is beyond the bounds.
    """
    document = read_yaml(path, imported)
    # cog runs the commands of `run` before it copies the project: only requirements are there.
    shell = Shell(imported, imported.shown(path), path.parent, workdir="/src")
    reader = _CogReader(imported, path, shell, document)
    for key, value in document.keys.items():
        reader.read(key, value)
    if "gpu" not in document.get("build").keys:
        reader.cpu(document, "build.gpu is not set: cog's images are for the CPU by default")


class _CogReader(CommandsDocument):
    def read(self, key: str, value: Value) -> None:
        """A key of the document, or of `build`."""
        read, note = _KEYS.get(key), NOTES.get(key)
        if read is not None:
            read(self, key, value)
        elif note is not None:
            self.add(key, value, Outcome.OUTSIDE, note)
        else:
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "envspec does not support this key of cog.yaml")

    def cpu(self, value: Value, why: str) -> None:
        """No GPU: torch is its build for the CPU."""
        add_cuda("cpu", self.at(value), self.imported, why)
        self.imported.add(self.at(value), "build.gpu: false", Outcome.TRANSLATED, f"no [cuda]: {why}")

    def gpu(self, key: str, value: Value) -> None:
        if value.text.lower() != "true":
            self.cpu(value, "gpu is false")
        elif self.document.get("build", "cuda").text:
            self.add(key, value, Outcome.TRANSLATED, "[cuda]")
        else:
            # docs/yaml.md, "gpu": cog derives CUDA from the versions of Python, PyTorch and TensorFlow.
            reason = "[cuda]: cog uses the CUDA in its own table for the pinned torch, envspec that of torch's wheels"
            self.add(key, value, Outcome.TRANSLATED, reason)

    def cuda(self, key: str, value: Value) -> None:
        if found := re.fullmatch(r"(\d+\.\d+)(\.\d+)?", value.text):
            add_cuda(found[1], self.at(value), self.imported, "build.cuda")
            self.add(key, value, Outcome.TRANSLATED, f"[cuda] version {found[1]}")
        else:
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "not a version of CUDA")

    def python(self, key: str, value: Value) -> None:
        if re.fullmatch(r"3\.\d+(\.\d+)?", value.text):
            self.imported.draft.pythons.append(Clue(value.text, self.at(value), "build.python_version"))
            self.add(key, value, Outcome.TRANSLATED, f"[env] python {value.text}")
        else:
            self.add(key, value, Outcome.NOT_UNDERSTOOD, "not a version of Python 3")

    def packages(self, key: str, value: Value) -> None:
        del key
        for each in value.items:
            add_line(each.text, self.at(each), self.imported, self.path.parent)

    def requirements(self, key: str, value: Value) -> None:
        path = self.path.parent / value.text
        self.shell.copy(f"/src/{value.text}", path)
        self.imported.include(path, self.at(value), f"{key}: {value.text}")

    def system(self, key: str, value: Value) -> None:
        del key
        for each in value.items:
            add_system_package(self.shell, Command((), self.at(each), each.text), each.text)

    def commands(self, key: str, value: Value) -> None:
        commands = value.items
        if not commands and value.text:
            commands = (value,)
        for each in commands:
            command = each.get("command") if each.keys else each
            for name, own in each.keys.items():
                if name != "command":
                    reason = "a build of an image has no secrets and mounts: set them at the start"
                    self.add(f"{key}.{name}", own, Outcome.OUTSIDE, reason)
            lines = command.text.split("\n")
            read_script(self.shell, [(command.line, f"{line}\n") for line in lines])

    def variables(self, key: str, value: Value) -> None:
        for each in value.items:
            name, _, text = each.text.partition("=")
            read_variable(name, text, self.at(each), f"{key}: {each.text}", self.imported)


_KEYS: Final[Mapping[str, Callable[[_CogReader, str, Value], None]]] = {
    "build": _CogReader.below,
    "build.gpu": _CogReader.gpu,
    "build.cuda": _CogReader.cuda,
    "build.python_version": _CogReader.python,
    "build.python_packages": _CogReader.packages,
    "build.python_requirements": _CogReader.requirements,
    "build.system_packages": _CogReader.system,
    "build.run": _CogReader.commands,
    "build.pre_install": _CogReader.commands,
    "environment": _CogReader.variables,
}
