"""Entry point: the whole suite, or a process of one of its checks, started by the process with that PID.

run.py [--until-stdin-ends] REQUEST RESULTS   the suite: reads REQUEST, writes RESULTS
run.py --driver PID REQUEST DIR cuda|nvml     what one library of the driver reports
run.py --watch PID REQUEST DIR                what happens to the GPUs meanwhile
run.py --node PID REQUEST DIR                 faults that NVML reports now
run.py --check PID REQUEST DIR NAME FD GPU    one check; FD signals its turn
run.py --case PID REQUEST DIR PACKAGE DEVICE  one extension on one device
run.py --torchrun PID FILE ...                torchrun with these arguments
run.py --rank PID DIR                         one rank of a check, started by torchrun
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

#: First word -> the module whose `work` is what the process does, with the words after DIR.
_WORK = {
    "--driver": "driver",
    "--watch": "health",
    "--node": "node",
    "--check": "worker",
    "--case": "extensions.case",
}


def main(arguments: list[str]) -> int:
    # The folder that holds `envspec` is the first on the path instead of this file's: the tested stack may have modules
    # of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    first, *words = arguments
    if first in _WORK:
        from envspec.conformance import isolation

        parent, request, folder, *more = words
        module = import_module(f"envspec.conformance.{_WORK[first]}")
        isolation.run(int(parent), Path(request), Path(folder), lambda context: module.work(context, *more))
    if first == "--rank":
        from envspec.conformance.distributed import rank

        rank.main(int(words[0]), Path(words[1]))
    if first == "--torchrun":
        from envspec.conformance.distributed import launch

        return launch.main(int(words[0]), Path(words[1]), words[2:])
    from envspec.conformance import suite

    if first == "--until-stdin-ends":
        arguments = words
        suite.stop_at_end_of_stdin()
    return suite.main(Path(arguments[0]).absolute(), Path(arguments[1]).absolute())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
