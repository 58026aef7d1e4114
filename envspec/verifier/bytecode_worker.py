"""Compares bytecode with its source: a program for the environment's Python, standard library only.

stdin: a JSON list of pairs, path of the bytecode and of its source. stdout: for each one line, flushed at once: `same`,
`differs`, `other` (for another Python or another tool), or `error ` and a reason.
"""

import importlib.util
import json
import marshal
import sys
from pathlib import Path

#: Bytes before the code (PEP 552).
_HEADER = 16
#: End of a module's bytecode -> its level of optimisation.
_LEVELS = {"": 0, ".opt-1": 1, ".opt-2": 2}


def _compare(path: Path, source: Path) -> str:
    start = f"{source.stem}.{sys.implementation.cache_tag}"
    # pytest stores code of its own under another tag.
    level = _LEVELS.get(path.stem[len(start) :]) if path.stem.startswith(start) else None
    data = path.read_bytes()
    if level is None or data[:4] != importlib.util.MAGIC_NUMBER:
        return "other"
    try:
        # Equal code may have another file's name: the folder where an installer compiled it.
        code = compile(source.read_bytes(), source, "exec", dont_inherit=True, optimize=level)
        found = marshal.loads(data[_HEADER:])  # noqa: S302 (an import would do so too)
    except OSError:
        raise
    except Exception:
        # Python does not write bytecode of such a source, nor such bytecode.
        return "differs"
    return "same" if found == code else "differs"


def main() -> None:
    for path, source in json.load(sys.stdin):
        try:
            line = _compare(Path(path), Path(source))
        except OSError as error:
            line = f"error {error.strerror}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
