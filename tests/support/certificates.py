"""Certificates for servers on 127.0.0.1."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and its certificate, which nobody trusts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("not run: openssl is not installed")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate),
            *("-days", "1", "-subj", "/CN=tests", "-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
