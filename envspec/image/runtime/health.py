"""The image's health check: prints a line for each service that does not answer, and exits with status 1.

Runs inside the image: standard library only, CPython 3.9 and later, `python -I -S health.py`.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TIMEOUT_S = 5.0
#: Available without a login: Jupyter's version, below the prefix that Kubeflow sets, and TensorBoard's page.
PATHS = {"jupyter": os.environ.get("NB_PREFIX", "").rstrip("/") + "/api", "tensorboard": "/"}


def problem(service: Mapping[str, Any]) -> str | None:
    """The problem of a service of services.json; None if it is healthy."""
    try:
        return _ssh(service["port"]) if service["name"] == "ssh" else _http(PATHS[service["name"]], service["port"])
    except (OSError, http.client.HTTPException) as error:
        return f"does not answer: {error}"


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
    return None if greeting.startswith(b"SSH-2.0-") else f"answers with {greeting[:40]!r}"


def main() -> int:
    settings = json.loads(Path(__file__).resolve().with_name("services.json").read_text(encoding="utf-8"))
    problems = [f"{service['name']} {found}\n" for service in settings["services"] if (found := problem(service))]
    sys.stdout.writelines(problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
