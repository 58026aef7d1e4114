"""The build backend of projects on pages: enough of hatchling for modules in src/."""

from __future__ import annotations

from typing import Final

from tests.support.builders.wheels import Artifact, wheel

_BACKEND: Final = """
import ast
import re
import zipfile
from pathlib import Path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    project = Path("pyproject.toml").read_text()
    name, version = (re.search(f'^{key} = "(.*)"$', project, re.M)[1] for key in ("name", "version"))
    required = ast.literal_eval(re.search(r"^dependencies = (\\[.*?\\])$", project, re.M | re.S)[1])
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    requires = "".join(f"Requires-Dist: {each}\\n" for each in required)
    content = {path.relative_to("src").as_posix(): path.read_text() for path in sorted(Path("src").rglob("*.py"))}
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n{requires}"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: backend\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    content[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(Path(wheel_directory, f"{stem}-py3-none-any.whl"), "w") as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{stem}-py3-none-any.whl"
"""


def hatchling() -> Artifact:
    """A wheel with the backend."""
    files = {"hatchling/__init__.py": b"", "hatchling/build.py": _BACKEND.encode()}
    return wheel("hatchling", "1.27.0", files=files)
