"""A uv.lock of a page's project: `python -m tests.docs.local_lock [FOLDER...]`, in a hidden block of the page.

uv locks the pyproject.toml of each folder (default: the current one) with the index on loopback. The addresses in the
lock are those of PyPI, as in a reader's lock. The Python of the tests is in .python-version.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.docs import local_python
from tests.support.builders import standalone
from tests.support.builders.adopted import lock_from


def main(folder: Path) -> None:
    """Write the lock."""
    lock_from(folder, os.environ["ENVSPEC_DEFAULT_INDEX"])
    (folder / ".python-version").write_text(f"{standalone.VERSION}\n", encoding="utf-8")
    with (folder / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('\n[tool.envspec.env]\npython_source = "standalone"\n')
        file.write(local_python.fact("tool.envspec."))


if __name__ == "__main__":
    for each in sys.argv[1:] or ["."]:
        main(Path(each))
