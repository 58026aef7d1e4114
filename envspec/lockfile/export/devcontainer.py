"""devcontainer.json: a lock's image as the container that an editor opens a project in.

Source: the Development Container Specification (containers.dev), its JSON reference and its schema
`devContainer.base.schema.json`; the file is JSON with comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from envspec.errors import UsageError
from envspec.escaping import one_line
from envspec.lockfile.export.conda import lines_text
from envspec.lockfile.export.types import Content, Exported, ExportRequest

# A comma ends a field of `workspaceMount`, and editors replace `${...}`.
_PLAIN: Final = re.compile(r"""[^,"'$\s]+""")
_PYTHON: Final = "/opt/env/bin/python"
#: Of the engine, of which 64 MB are the default: too few for data loaders. It takes memory as it is used.
_SHM: Final = "--shm-size=16g"


def text(request: ExportRequest) -> Exported:
    """The file; its image is built or pulled before, or when the container is made."""
    missing = list(map(one_line, _missing(request)))
    document = json.dumps(_document(request), indent=2)
    return Exported(f"{lines_text(request.header(missing), '// ')}{document}\n", missing)


def _document(request: ExportRequest) -> dict[str, Any]:
    lock, container = request.lock, request.container
    folder = lock.image.workdir
    if not _PLAIN.fullmatch(folder):
        raise UsageError(
            f"[image] workdir {folder!r} can't be mounted by a devcontainer.json",
            hint="use a folder such as /workspace",
        )
    document: dict[str, Any] = {"name": lock.name, "image": request.image}
    arguments = [_SHM]
    if lock.is_for_gpus:
        document["hostRequirements"] = {"gpu": True}
        # An engine that knows GPUs by CDI alone has no runtime `nvidia`, by which editors recognise GPUs.
        arguments = ["--gpus", "all", *arguments]
    document["runArgs"] = arguments
    document["workspaceMount"] = f"source=${{localWorkspaceFolder}},target={folder},type=bind"
    document["workspaceFolder"] = folder
    if container.user:
        # Editors give a user with a name the ID of their own user. Images without a system layer do not list it.
        document["remoteUser"] = container.name if lock.image.apt else container.user.partition(":")[0]
    if lock.image.services:
        # Else the editor starts its own command in place of the services.
        document["overrideCommand"] = False
        document["forwardPorts"] = sorted(each.port for each in lock.image.services)
    settings = {"python.defaultInterpreterPath": _PYTHON}
    document["customizations"] = {"vscode": {"extensions": ["ms-python.python"], "settings": settings}}
    return document


def _missing(request: ExportRequest) -> Iterator[str]:
    for content, text in request.contents():
        if content is Content.DRIVER:
            yield text
    if "@sha256:" not in request.image:
        yield f"the image's digest: whatever is called {request.image} is used"
