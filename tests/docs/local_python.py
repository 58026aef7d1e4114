"""An image of a page's spec, built here: `python -m tests.docs.local_python SPEC`, in a hidden block of the page.

SPEC may be a pyproject.toml, whose [tool.envspec] is the spec.

Pages have `python = "3.11"`, and envspec fetches a standalone build of it. Here the spec gets the Python that
runs the tests, and a `[[facts.python]]` row with an archive of this Python, which a server on loopback has.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from envspec.spec.document import root_of
from tests.support.builders import standalone
from tests.support.servers.faults import Answer
from tests.support.servers.threaded import Exchange, Threaded

_FOLDER: Final = "ENVSPEC_DOCS_PYTHON_FOLDER"
_URL: Final = "ENVSPEC_DOCS_PYTHON_URL"
_NAME: Final = "cpython.tar.gz"


class Archives(Threaded):
    """Serves one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def handle(self, request: Exchange) -> None:
        path = self.folder / Path(request.path).name
        request.answer(Answer(200, path.read_bytes()) if path.is_file() else Answer(404))


@contextmanager
def archives() -> Iterator[dict[str, str]]:
    """The variables by which the command finds the server. The archive is made when it is needed."""
    with TemporaryDirectory(prefix="envspec-tests-") as folder, Archives(Path(folder)) as server:
        yield {_FOLDER: folder, _URL: f"http://{server.host}/{_NAME}"}


def fact(root: str) -> str:
    """The row of `[[facts.python]]`. root: of the spec in its file, with a dot at its end; empty: all of the file."""
    path = Path(os.environ[_FOLDER], _NAME)
    if not path.exists():
        standalone.write(path, standalone.of_running())
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return (
        f'\n[[{root}facts.python]]\nversion = "{standalone.VERSION}"\nplatform = "linux-64"\nbuild = "20200101"\n'
        f'url = "{os.environ[_URL]}"\nsha256 = "{sha256}"\nsource = "the Python that runs the tests"\n'
    )


def main(spec: Path) -> None:
    """Rewrite the spec."""
    root = ".".join((*root_of(spec), ""))
    # Of a series, the newest patch would be taken.
    exact = f'python = "{standalone.VERSION}"\npython_source = "standalone"'
    text = re.sub(r'(?m)^python(_source)? = ".*"\n', "", spec.read_text(encoding="utf-8"))
    table = f"[{root}env]\n"
    if table not in text:
        text = f"{text}\n{table}"
    spec.write_text(text.replace(table, f"{table}{exact}\n", 1) + fact(root), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
