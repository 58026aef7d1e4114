"""`python ward.py COMMAND...`: runs a program that must not outlive who started it.

The program ends when this process's stdin does, which is when the run that holds the other end has ended, killed or
not. It is over before this process is, and with it the lock on the folder that both hold. Linux could do that by itself
(prctl), macOS could not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main() -> int:
    """The program's exit status; 137 when it was ended here."""
    # What it installs are hard links into its cache: whoever may write to a file of an environment would write there.
    os.umask(os.umask(0) | 0o022)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False)  # noqa: S603 (the words are ours)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        child.kill()

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.stdout.flush()
    # Not `sys.exit`, which would wait for the thread that reads.
    os._exit(main())
