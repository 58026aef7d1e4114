"""The environment that every measured command gets: the machine's certificates and nothing else of its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Certificates and language. Everything that could name an index, a cache or a wheel stays out.
KEPT: Final = (
    "PATH",
    "LANG",
    "LC_ALL",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
)


def clean(environ: Mapping[str, str], *, home: Path, proxy: str | None) -> dict[str, str]:
    """Variables for a command whose HOME is an empty folder of its own.

    proxy: URL that all traffic but loopback's goes through, None for the direct way.
    """
    kept = {key: environ[key] for key in KEPT if key in environ}
    routed = {}
    if proxy is not None:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        routed = dict.fromkeys(names, proxy) | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {
        **kept,
        **routed,
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "PYTHONDONTWRITEBYTECODE": "",
        "NO_COLOR": "1",
    }
