"""Debian's `docker-registry` on a free loopback port, with content pushed by plain HTTP, for tests marked `engine`."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.registry import Blob

PROGRAM = shutil.which("docker-registry")
#: bcrypt of `s3cret:with:colons`, of the lowest cost.
HTPASSWD = "tester:$2b$04$pl0CjGrbUjhSu3ISaExTKeB4PDQcCRZbbIH4dXE3tj/voD1wBAXlK\n"
LOGIN = ("tester", "s3cret:with:colons")


@contextlib.contextmanager
def docker_registry(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Run one and give its host and port. auth: its configuration's `auth`."""
    assert PROGRAM
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "for uploads, in tests"},
    } | ({"auth": dict(auth)} if auth else {})
    path = folder / "registry.json"
    path.write_text(json.dumps(settings))  # YAML reads JSON
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(path)], stdout=log, stderr=log, env={"OTEL_TRACES_EXPORTER": "none"}
        )
        try:
            _wait(port, process, folder / "registry.log")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def push(host: str, name: str, *blobs: Blob, headers: Mapping[str, str] | None = None) -> None:
    """Push configs, then manifests, the last one under the tag of `name` too."""
    repository, _, tag = name.partition(":")
    base = f"http://{host}/v2/{repository}"
    for place, blob in enumerate(blobs):
        if ".config." in blob.media_type:
            start = _send("POST", f"{base}/blobs/uploads/", b"", headers or {})
            location = start["Location"]
            mark = "&" if "?" in location else "?"
            _send("PUT", f"{location}{mark}digest={blob.digest}", blob.body, headers or {})
            continue
        for target in {blob.digest, tag if place == len(blobs) - 1 else blob.digest}:
            _send("PUT", f"{base}/manifests/{target}", blob.body, {"Content-Type": blob.media_type, **(headers or {})})


def basic(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _send(method: str, url: str, body: bytes, headers: Mapping[str, str]) -> Mapping[str, str]:
    kind = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, body, kind | dict(headers), method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return dict(answer.headers)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if process.poll() is not None:
            break
        try:
            _send("GET", f"http://127.0.0.1:{port}/v2/", b"", {})
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
            continue
        return
    raise AssertionError(f"docker-registry does not run:\n{log.read_text()}")
