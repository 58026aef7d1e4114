"""Takes away a container whose starter was killed: by a process of its own, for who is killed does nothing any more."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from envspec.errors import EnvspecError

#: A container may be in the making while its starter is killed; an engine may be starting again.
_TRIES: Final = 5
_PAUSE_S: Final = 1.0
#: Imports nothing of weight before it has to: a second process for each container is to cost next to nothing. What ends
#: its starter is not to end it.
_GUARD: Final = """
import signal, sys
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"):
    if hasattr(signal, name):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
if not sys.stdin.buffer.read(1):
    import json
    container, sys.path[:] = json.loads(sys.argv[1])
    from envspec.engine.guard import take_away
    take_away(container)
"""


@contextlib.contextmanager
def guarded(container: str) -> Iterator[None]:
    """Have a container taken away if this process ends in the middle. container: its name, which need not exist yet.

    A process in a session of its own waits for the end of a pipe; a byte through the pipe says that all went well.
    """
    words = [sys.executable, "-I", "-S", "-c", _GUARD, json.dumps([container, sys.path])]
    with subprocess.Popen(  # noqa: S603 (no shell; the words are ours)
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as guard:
        try:
            yield
        finally:
            # Somebody may have killed it.
            with contextlib.suppress(BrokenPipeError):
                guard.communicate(b".")


def take_away(container: str) -> None:
    """Remove it, running or not, from the engine that this process's environment names."""
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    from envspec.engine.docker import open_engine

    for _ in range(_TRIES):
        # Nobody reads what is told here: an engine that does not answer is asked again.
        with contextlib.suppress(EnvspecError, DockerException, RequestException), open_engine(os.environ) as engine:
            try:
                engine.client.remove_container(container, force=True, v=True)
            except APIError as error:
                # 409: it is being removed already.
                if error.status_code != 409:
                    raise
            return
        time.sleep(_PAUSE_S)
