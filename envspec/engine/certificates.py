"""Certificates of this machine for the steps of a build, by mounts of BuildKit: nothing of them is in a layer. Pure.

Source: Dockerfile reference, "RUN --mount=type=bind", which Docker has since 20.10 without a line about its syntax.
"""

from __future__ import annotations

import re
from typing import Final

#: In the context, which may hold files of a user's.
FOLDER: Final = ".envspec-certificates"
#: On a file system of its own in every container: a mount elsewhere leaves an empty folder in the layer.
_MOUNTED: Final = "/dev/shm/envspec"  # noqa: S108 (a mount's place, where nothing is written)
#: What programs of a build read: pip, micromamba, curl, and whatever uses OpenSSL.
_VARIABLES: Final = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_MOUNT: Final = f"--mount=type=bind,source={FOLDER},target={_MOUNTED}"


def context_files(certificates: bytes) -> dict[str, bytes]:
    """What the context needs beside its own files. certificates: a CA bundle, PEM."""
    apt = f'Acquire::https::CaInfo "{_MOUNTED}/ca.pem";\n'
    return {f"{FOLDER}/apt.conf": apt.encode(), f"{FOLDER}/ca.pem": certificates}


def with_certificates(dockerfile: str) -> str:
    """A Dockerfile whose RUN steps see them: mounted, and named by arguments, which are no variables of the image."""
    told = [f"ARG {name}={_MOUNTED}/ca.pem" for name in _VARIABLES] + [f"ARG APT_CONFIG={_MOUNTED}/apt.conf"]
    lines: list[str] = []
    goes_on = False
    for line in dockerfile.splitlines():
        word = "" if goes_on else line.partition(" ")[0].upper()
        lines.append(f"RUN {_MOUNT}{line[len(word) :]}" if word == "RUN" else line)
        if word == "FROM":
            lines += told
        # A comment between the lines of a step does not end it.
        goes_on = bool(re.search(r"\\\s*$", line)) or (goes_on and line.lstrip().startswith("#"))
    return "\n".join(lines) + "\n"
