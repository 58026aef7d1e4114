"""Where the default index is: pip's own default, never a setting of this machine's pip or uv."""

from __future__ import annotations

from collections.abc import Mapping


def default_index_url(environ: Mapping[str, str]) -> str:
    """The address of the default index's simple pages, with a closing slash.

    `ENVSPEC_DEFAULT_INDEX` names a mirror that stands in for it: its address, too, is never written to a lock.
    """
    named = environ.get("ENVSPEC_DEFAULT_INDEX")
    if named:
        return named.rstrip("/") + "/"
    # The one place where pip states it; importing it runs nothing and reads no configuration.
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/") + "/"
