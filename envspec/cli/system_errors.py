"""Errors of the system under other names: a full disk that uv reports, or a file that no command expects to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Final

from envspec.cli.terminal import limit_text
from envspec.conformance.results import error_chain
from envspec.errors import EnvspecError, UnfitMachine
from envspec.io.files import FULL, DiskFull, SystemFault, system_faults

_TOO_MANY_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: The system does not let this process use a file, or its disk fails.
_REFUSED: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ELOOP,
        errno.EIO,
        errno.ESTALE,
    }
)
#: The text of tempfile's FileNotFoundError, whose number says nothing.
_NO_TEMPORARY: Final = "No usable temporary directory"


class TooManyOpenFiles(UnfitMachine, code="too-many-open-files"):
    """The limit of open files is too low, whatever the operation was that met it."""


class FileRefused(UnfitMachine, code="file-refused"):
    """The system does not let this process read or write a file that a command needs."""


def system_error(error: BaseException) -> EnvspecError | None:
    """The error to report instead of one that the system caused; None for others.

    An error that states its cause is not replaced, unless that is the limit of open files: few name it.
    """
    found = list(_found(error))
    if any(each.number in _TOO_MANY_FILES for each in found):
        return TooManyOpenFiles(
            f"too many open files{limit_text()}",
            hint="raise the limit, as with `ulimit -n 4096`, or LimitNOFILE= of a systemd service, "
            "or --ulimit nofile=4096 of a container",
        )
    if isinstance(error, EnvspecError) and error.exit_code != EnvspecError.exit_code:
        return None
    for number, path in found:
        subject = path or "a file"
        if number in FULL:
            return DiskFull(
                f"no space left for {subject}: {os.strerror(number)}",
                hint="free space, or set ENVSPEC_CACHE_DIR and TMPDIR to folders on another disk; "
                "finished work is kept",
            )
        if number in _REFUSED:
            return FileRefused(
                f"{subject} can't be used: {os.strerror(number)}",
                hint="make it readable and writable; if it is in the cache, set ENVSPEC_CACHE_DIR to another folder",
            )
    if _NO_TEMPORARY in str(error):
        return FileRefused(
            "there is no folder for temporary files that can be written", hint="set TMPDIR to a writable folder"
        )
    return None


def _found(error: BaseException) -> Iterator[SystemFault]:
    for each in error_chain(error):
        if isinstance(each, OSError) and each.errno is not None:
            yield SystemFault(each.errno, str(each.filename or ""))
        text = str(each)
        if isinstance(each, EnvspecError):
            text += f" {each.details}"
        yield from system_faults(text)
