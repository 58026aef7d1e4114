"""The image's health check: does each service answer? One line for each that does not, and then status 1.

Runs inside the image: standard library only, CPython 3.9 and later, `python -I -S health.py`.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0
#: Answered without a login: Jupyter's version, TensorBoard's page.
PATHS = {"jupyter": "/api", "tensorboard": "/"}


def fault_of(service: Mapping[str, Any]) -> str | None:
    """What is wrong with a service of services.json; None where it answers as it should."""
    try:
        return _ssh(service["port"]) if service["name"] == "ssh" else _http(PATHS[service["name"]], service["port"])
    except (OSError, http.client.HTTPException) as fault:
        return f"does not answer: {fault}"


def _http(path: str, port: int) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    finally:
        connection.close()
    return None if status == 200 else f"answers with HTTP status {status}"


def _ssh(port: int) -> str | None:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        greeting = connection.recv(256)
    return None if greeting.startswith(b"SSH-2.0-") else f"greets with {greeting[:40]!r}"


def main() -> int:
    settings = json.loads(Path(__file__).resolve().with_name("services.json").read_text(encoding="utf-8"))
    faults = [(service["name"], fault_of(service)) for service in settings["services"]]
    for name, fault in faults:
        if fault is not None:
            sys.stdout.write(f"{name} {fault}\n")
    return int(any(fault is not None for _, fault in faults))


if __name__ == "__main__":
    sys.exit(main())
