"""Entry point: the whole suite, or a process of one of its checks.

run.py [--until-stdin-ends] REQUEST RESULTS   the suite: reads REQUEST, writes RESULTS
run.py --driver PID REQUEST DIR cuda|nvml     what one library of the driver reports, for the process with that PID
run.py --watch PID REQUEST DIR                what happens to the GPUs meanwhile, for the suite with that PID
run.py --node PID REQUEST DIR                 faults that NVML reports now, for the process with that PID
run.py --check NAME PID REQUEST DIR FD GPU    one check, started by the suite with that PID; FD signals its turn
run.py --case PID REQUEST DIR PACKAGE DEVICE  one extension on one device, started by the check with that PID
run.py --torchrun PID FILE ...                torchrun with these arguments, started by the check with that PID
run.py --rank PID DIR                         one rank of a check, started by the torchrun with that PID
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Callable


def _number(text: str) -> int | None:
    return int(text) if text else None


#: First word -> the module whose `main` is the process, and the types of its arguments.
_PROCESSES: Mapping[str, tuple[str, tuple[Callable[[str], Any], ...]]] = {
    "--driver": ("driver", (int, Path, Path, str)),
    "--watch": ("health", (int, Path, Path)),
    "--node": ("node", (int, Path, Path)),
    "--check": ("worker", (str, int, Path, Path, int, _number)),
    "--case": ("extensions.case", (int, Path, Path, str, str)),
    "--rank": ("distributed.rank", (int, Path)),
}


def main(arguments: list[str]) -> int:
    # The folder that holds `envspec` is the first on the path instead of this file's: the tested stack may have modules
    # of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    first, *words = arguments
    if first in _PROCESSES:
        module, types = _PROCESSES[first]
        status: int = import_module(f"envspec.conformance.{module}").main(
            *(kind(word) for kind, word in zip(types, words))
        )
        return status
    if first == "--torchrun":
        from envspec.conformance.distributed import launch

        return launch.main(int(words[0]), Path(words[1]), words[2:])
    from envspec.conformance import suite

    if first == "--until-stdin-ends":
        arguments = words
        suite.stop_at_end_of_stdin()
    return suite.main(Path(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
