"""The limit of files that a process may have open (`ulimit -n`)."""

from __future__ import annotations

from typing import Final

#: More are not needed, and some programs walk through all numbers up to the limit.
_MOST: Final = 65_536


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


def limit_text() -> str:
    """`: the limit is 1024 for each process`; empty on systems without one."""
    try:
        import resource
    except ImportError:
        return ""
    return f": the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} for each process"
