"""Debian's `docker-registry` on a free loopback port, its token server, and a client that pushes by plain HTTP."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, urlsplit

from tests.support.servers.loopback import Answer, Asked, basic, reply
from tests.support.servers.registry import OCI_CONFIG, Blob
from tests.support.waits import free_port

PROGRAM = shutil.which("docker-registry")
#: bcrypt of `s3cret:with:colons`, of the lowest cost.
HTPASSWD = "tester:$2b$04$pl0CjGrbUjhSu3ISaExTKeB4PDQcCRZbbIH4dXE3tj/voD1wBAXlK\n"
LOGIN = ("tester", "s3cret:with:colons")


def start(folder: Path, port: int, settings: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """Run one whose data and log are in `folder`. settings: of its configuration, instead of the usual ones."""
    assert PROGRAM
    usual = {
        "version": "0.1",
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "for uploads, in tests"},
    }
    path = folder / "registry.json"
    path.write_text(json.dumps({**usual, **settings}))  # YAML reads JSON
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "serve", str(path)], stdout=log, stderr=log, env={"OTEL_TRACES_EXPORTER": "none"}
        )
    try:
        _wait(port, process, folder / "registry.log")
    except BaseException:
        stop(process)
        raise
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(10)


@contextlib.contextmanager
def docker_registry(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Run one and give its host and port. auth: its configuration's `auth`."""
    port = free_port()
    process = start(folder, port, {"auth": dict(auth)} if auth else {})
    try:
        yield f"127.0.0.1:{port}"
    finally:
        stop(process)


def push(host: str, name: str, *blobs: Blob, headers: Mapping[str, str] | None = None) -> None:
    """Push configs, then manifests, the last one under the tag of `name` too."""
    repository, _, tag = name.partition(":")
    base = f"http://{host}/v2/{repository}"
    for blob in blobs:
        if blob.media_type == OCI_CONFIG:
            _upload(base, blob.digest, io.BytesIO(blob.body), headers or {})
        else:
            for target in {blob.digest, tag if blob is blobs[-1] else blob.digest}:
                kind = {"Content-Type": blob.media_type}
                _send("PUT", f"{base}/manifests/{target}", blob.body, {**kind, **(headers or {})})


def push_layout(host: str, layout: Path, name: str) -> None:
    """Push the image of an OCI layout, or its index with all that it names."""
    repository, _, tag = name.partition(":")
    base = f"http://{host}/v2/{repository}"
    blobs = layout / "blobs" / "sha256"

    def path(row: Mapping[str, Any]) -> Path:
        return blobs / str(row["digest"]).removeprefix("sha256:")

    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    images = json.loads(path(top).read_text()).get("manifests", [])
    for image in images or [top]:
        manifest = json.loads(path(image).read_text())
        for row in (manifest["config"], *manifest["layers"]):
            with path(row).open("rb") as content:
                _upload(base, row["digest"], content, {})
    for row, target in (*((image, image["digest"]) for image in images), (top, tag)):
        _send("PUT", f"{base}/manifests/{target}", path(row).read_bytes(), {"Content-Type": row["mediaType"]})


def _upload(base: str, digest: str, content: IO[bytes], headers: Mapping[str, str]) -> None:
    with contextlib.suppress(urllib.error.HTTPError):
        _send("HEAD", f"{base}/blobs/{digest}", None, headers)
        return
    location = _send("POST", f"{base}/blobs/uploads/", b"", headers)["Location"]
    size = {"Content-Length": str(content.seek(0, io.SEEK_END))}
    content.seek(0)
    _send("PUT", f"{location}{'&' if '?' in location else '?'}digest={digest}", content, {**size, **headers})


def _send(method: str, url: str, body: bytes | IO[bytes] | None, headers: Mapping[str, str]) -> Mapping[str, str]:
    kind = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, body, kind | dict(headers), method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return dict(answer.headers)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if process.poll() is not None:
            break
        try:
            _send("GET", f"http://127.0.0.1:{port}/v2/", None, {})
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
            continue
        return
    raise AssertionError(f"docker-registry does not run:\n{log.read_text()}")


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenServer:
    """Wants basic authentication. lasts_s: of its tokens, which docker-registry takes for 60 s more. given: scopes."""

    def __init__(self, folder: Path, openssl: str, lasts_s: int = 300) -> None:
        self.lasts_s, self.given = lasts_s, list[list[str]]()
        self.openssl, self.key, self.certificate = openssl, folder / "key.pem", folder / "cert.pem"
        subprocess.run(
            [
                *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=tokens"),
                *("-keyout", self.key, "-out", self.certificate),
            ],
            check=True,
            capture_output=True,
        )

    def token(self, *scopes: str) -> str:
        pem = self.certificate.read_text().split("-----")[2]
        header = {"typ": "JWT", "alg": "RS256", "x5c": ["".join(pem.split())]}
        now = int(time.time())
        claims = {
            "iss": "test",
            "sub": "tester",
            "aud": "registry",
            "jti": "1",
            "nbf": now - 300,
            "exp": now + self.lasts_s,
        }
        rows = (scope.split(":") for scope in scopes)
        access = [{"type": kind, "name": name, "actions": actions.split(",")} for kind, name, actions in rows]
        signed = f"{b64url(json.dumps(header).encode())}.{b64url(json.dumps(claims | {'access': access}).encode())}"
        command = [self.openssl, "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(command, input=signed.encode(), check=True, capture_output=True).stdout
        return f"{signed}.{b64url(signature)}"

    def answer(self, asked: Asked) -> Answer:
        query = parse_qs(urlsplit(asked.target).query)
        if asked.headers.get("authorization") != f"Basic {basic(*LOGIN)}":
            return reply(401, {"errors": [{"code": "UNAUTHORIZED", "message": "no such user"}]})
        assert query["service"] == ["registry"]
        self.given.append(query["scope"])
        return reply(200, {"token": self.token(*query["scope"]), "expires_in": 300})

    def settings(self, url: str) -> dict[str, dict[str, str]]:
        """The registry's `auth` that trusts this server at `url`."""
        return {
            "token": {
                "realm": f"{url}/token",
                "service": "registry",
                "issuer": "test",
                "rootcertbundle": str(self.certificate),
            }
        }
