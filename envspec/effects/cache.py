"""Where envspec keeps what it can make or fetch again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_root(environ: Mapping[str, str]) -> Path:
    """The folder of envspec's caches: `ENVSPEC_CACHE_DIR`, else the system's own place for caches."""
    named = environ.get("ENVSPEC_CACHE_DIR")
    if named:
        return Path(named)
    # 20 ms that most commands need not spend
    import platformdirs

    return Path(platformdirs.user_cache_dir("envspec", appauthor=False))
