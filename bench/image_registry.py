"""A registry on loopback that can be emptied, with the base image in it, and what went in and out of it in bytes."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.workshop import NotHere

_STARTING_S: Final = 10.0
#: `127.0.0.1 - - [..] "GET /v2/NAME/blobs/sha256:.. HTTP/1.1" 200 1234 "" "docker/.."`
_BLOB_READ: Final = re.compile(r'"GET /v2/\S+/(?:blobs|manifests)/\S+ HTTP/[\d.]+" 2\d\d (\d+)')
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Base:
    """The base image, an OCI layout. name: repository and tag that it gets in the registry."""

    layout: Path
    name: str

    def blob(self, digest: str) -> Path:
        return self.layout / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def document(self, digest: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.blob(digest).read_text())
        return found

    @property
    def top(self) -> dict[str, Any]:
        """What the layout's index names: the only image, or an index of its platforms."""
        (row,) = json.loads((self.layout / "index.json").read_text())["manifests"]
        found: dict[str, Any] = row
        return found


@dataclass(slots=True)
class Registry:
    """Debian's docker-registry. The port stays the same over its lives: names of images hold it."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @classmethod
    def at(cls, folder: Path) -> Registry:
        """On a port that is free now.

        Raises:
            NotHere: no docker-registry is installed.
        """
        if shutil.which("docker-registry") is None:
            raise NotHere("docker-registry is not installed (Debian's package docker-registry)")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return cls(folder, probe.getsockname()[1])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start_empty(self, base: Base) -> None:
        """Stop it, forget everything, start again with nothing but the base image."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        settings = {
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "data")}},
            "http": {"addr": self.host, "secret": "for uploads on loopback"},
        }
        path = self.folder / "registry.json"
        path.write_text(json.dumps(settings))  # YAML reads JSON
        with (self.folder / "access.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["docker-registry", "serve", path], stdout=log, stderr=log, env={"OTEL_TRACES_EXPORTER": "none"}
            )
        self._wait()
        self._push(base)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def stored_bytes(self) -> int:
        """All that it holds, uploads under way with it: what was sent to it since it was empty, and the base."""
        total = 0
        for path in (self.folder / "data").rglob("data"):
            with contextlib.suppress(FileNotFoundError):  # an upload has become a blob
                total += path.stat().st_size
        return total

    def read_bytes(self) -> int:
        """Bodies of the blobs and manifests that were read from it since it was empty."""
        return read_bytes((self.folder / "access.log").read_text(errors="replace"))

    def manifest(self, repository: str, tag: str) -> dict[str, Any]:
        """The manifest of an image, of the first platform where there are several."""
        found: dict[str, Any] = json.loads(self._ask("GET", f"/v2/{repository}/manifests/{tag}", headers=_ACCEPT)[1])
        if "manifests" in found:
            return self.manifest(repository, found["manifests"][0]["digest"])
        return found

    def _push(self, base: Base) -> None:
        repository, _, tag = base.name.partition(":")
        top = base.top
        rows = base.document(top["digest"]).get("manifests", [])
        images = [row["digest"] for row in rows] or [top["digest"]]
        for image in images:
            document = base.document(image)
            for blob in (document["config"], *document["layers"]):
                self._upload(repository, blob["digest"], base.blob(blob["digest"]))
        for name, kind in [(image, _MANIFEST) for image in images if rows] + [(tag, top["mediaType"])]:
            body = base.blob(top["digest"] if name == tag else name).read_bytes()
            self._ask("PUT", f"/v2/{repository}/manifests/{name}", body, {"Content-Type": kind})

    def _upload(self, repository: str, digest: str, path: Path) -> None:
        location, _ = self._ask("POST", f"/v2/{repository}/blobs/uploads/", b"")
        target = location.partition(self.host)[2]
        with path.open("rb") as content:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
            self._ask("PUT", f"{target}{'&' if '?' in target else '?'}digest={digest}", content, headers)

    def _ask(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[str, bytes]:
        """Where the answer points, and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, target, body, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise OSError(f"the registry answers {answer.status} to {method} {target}: {text[:200]!r}")
            return answer.headers.get("Location", ""), text

    def _wait(self) -> None:
        until = time.monotonic() + _STARTING_S
        while time.monotonic() < until:
            try:
                self._ask("GET", "/v2/")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise NotHere(f"docker-registry does not come up: {(self.folder / 'access.log').read_text()[-300:]}")


_ACCEPT: Final = {
    "Accept": ", ".join(
        (
            _MANIFEST,
            _INDEX,
            "application/vnd.docker.distribution.manifest.v2+json",
            "application/vnd.docker.distribution.manifest.list.v2+json",
        )
    )
}


def read_bytes(log: str) -> int:
    """The bytes of blobs and manifests in an access log of the usual ("combined") form."""
    return sum(map(int, _BLOB_READ.findall(log)))
