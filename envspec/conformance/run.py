"""Where Python begins: the whole suite, or the process of one of its checks.

run.py ORDER RESULTS            the suite: ORDER is read, RESULTS written
run.py --check NAME PID DIR FD  one check, begun by the suite whose process is PID; its turn is told by FD
run.py --torchrun PID FILE ...  torchrun with the words that follow, begun by the check whose process is PID
run.py --rank PID DIR           one rank of a check, begun by the torchrun whose process is PID
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(words: list[str]) -> int:
    """The exit status of a command line; see `suite` and `child`."""
    # The folder that holds `envspec` comes first on the path, and this file's own not at all: what is tested may have
    # modules of the same names.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if words[:1] == ["--check"]:
        from envspec.conformance import worker

        return worker.main(words[1], int(words[2]), Path(words[3]), int(words[4]))
    if words[:1] == ["--torchrun"]:
        from envspec.conformance.distributed import launch

        return launch.main(int(words[1]), Path(words[2]), words[3:])
    if words[:1] == ["--rank"]:
        from envspec.conformance.distributed import rank

        return rank.main(int(words[1]), Path(words[2]))
    from envspec.conformance import suite

    if words[:1] == ["--until-stdin-ends"]:
        words = words[1:]
        suite.stop_at_end_of_stdin()
    return suite.main(Path(words[0]), Path(words[1]), Path(__file__).resolve())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
