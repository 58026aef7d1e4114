"""A uv.lock of a page's project: `python -m tests.docs.local_lock [FOLDER...]`, in a hidden block of the page.

uv locks the pyproject.toml of each folder (default: the current one) with the index on loopback. The addresses in the
lock are those of PyPI, as in a reader's lock. The spec in the pyproject.toml gets the Python of the tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.docs import local_python
from tests.support.builders.adopted import lock_from


def main(folder: Path) -> None:
    """Write the lock."""
    lock_from(folder, os.environ["ENVSPEC_DEFAULT_INDEX"])
    local_python.main(folder / "pyproject.toml")


if __name__ == "__main__":
    for each in sys.argv[1:] or ["."]:
        main(Path(each))
