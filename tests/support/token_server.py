"""A token server for docker-registry: signs what distribution's specification asks for, with a key of its own."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.docker_registry import LOGIN, basic
from tests.support.raw_server import Answer, Asked, reply


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
