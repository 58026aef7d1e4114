"""Entry point: the whole suite, or a process of one of its checks.

run.py [--until-stdin-ends] REQUEST RESULTS   the suite: reads REQUEST, writes RESULTS
run.py --driver PID REQUEST DIR cuda|nvml     what one library of the driver reports, for the process with that PID
run.py --watch PID REQUEST DIR                what happens to the GPUs meanwhile, for the suite with that PID
run.py --check NAME PID REQUEST DIR FD GPU    one check, started by the suite with that PID; FD signals its turn
run.py --case PID REQUEST DIR PACKAGE DEVICE  one extension on one device, started by the check with that PID
run.py --torchrun PID FILE ...                torchrun with these arguments, started by the check with that PID
run.py --rank PID DIR                         one rank of a check, started by the torchrun with that PID
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    # The folder that holds `envspec` is the first on the path instead of this file's: the tested stack may have modules
    # of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if arguments[:1] == ["--check"]:
        from envspec.conformance import worker

        name, parent, request, folder, turn, gpu = arguments[1:]
        chosen = int(gpu) if gpu else None
        return worker.main(name, int(parent), Path(request), Path(folder), int(turn), chosen)
    if arguments[:1] == ["--driver"]:
        from envspec.conformance import driver

        return driver.main(int(arguments[1]), Path(arguments[2]), Path(arguments[3]), arguments[4])
    if arguments[:1] == ["--watch"]:
        from envspec.conformance import health

        return health.main(int(arguments[1]), Path(arguments[2]), Path(arguments[3]))
    if arguments[:1] == ["--case"]:
        from envspec.conformance.extensions import case

        return case.main(int(arguments[1]), Path(arguments[2]), Path(arguments[3]), arguments[4], arguments[5])
    if arguments[:1] == ["--torchrun"]:
        from envspec.conformance.distributed import launch

        return launch.main(int(arguments[1]), Path(arguments[2]), arguments[3:])
    if arguments[:1] == ["--rank"]:
        from envspec.conformance.distributed import rank

        return rank.main(int(arguments[1]), Path(arguments[2]))
    from envspec.conformance import suite

    if arguments[:1] == ["--until-stdin-ends"]:
        arguments = arguments[1:]
        suite.stop_at_end_of_stdin()
    return suite.main(Path(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
