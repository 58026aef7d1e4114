"""The limit of files that a process may have open (`ulimit -n`)."""

from __future__ import annotations

import errno
from typing import Final

from envspec.errors import EnvspecError, UnfitMachine

#: More are not needed, and some programs walk through all numbers up to the limit.
_MOST: Final = 65_536
_NUMBERS: Final = (errno.EMFILE, errno.ENFILE)
#: How programs in Rust (uv, rattler) write them.
_IN_TEXT: Final = tuple(f"(os error {number})" for number in _NUMBERS)


class TooManyOpenFiles(UnfitMachine):
    """The limit of open files is too low, whatever the operation was that met it."""

    code = "too-many-open-files"


def raise_limit() -> None:
    """Raise the limit to what this user may have: the usual one is for programs that use select(), and low on macOS."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS refuses more than kern.maxfilesperproc.
        for limit in (wanted, 10_240):
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            except (OSError, ValueError):
                continue
            return


def too_many_open_files(error: BaseException) -> TooManyOpenFiles | None:
    """The error to report instead of one that this limit caused, under whatever name; None for others."""
    from envspec.conformance.results import error_chain

    for each in error_chain(error):
        text = f"{each} {each.details}" if isinstance(each, EnvspecError) else str(each)
        if getattr(each, "errno", None) in _NUMBERS or any(found in text for found in _IN_TEXT):
            return TooManyOpenFiles(
                f"too many open files{_limit()}",
                hint="raise the limit, as with `ulimit -n 4096`, or LimitNOFILE= of a systemd service, "
                "or --ulimit nofile=4096 of a container",
            )
    return None


def _limit() -> str:
    try:
        import resource
    except ImportError:
        return ""
    return f": the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} for each process"
