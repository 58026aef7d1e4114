"""The requests of a run to an engine at a socket of this machine, without the SDK, whose import takes 0.1 s.

The methods have names, arguments and errors of the SDK's low-level client.

Source: Docker Engine API 1.41, "Ping", "Container" and "Image". Read 2026-11.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

_PIECE: Final = 1 << 16
#: Of a response that is not an archive.
_MOST_BYTES: Final = 16 << 20


class NoResponse(ConnectionError):
    """The engine does not listen, or ended the connection, or sent something else than HTTP and JSON."""


class LocalClient:
    """A connection for each request.

    path: of the socket. timeout_s: of a response. api_version: without one only `version` can be requested.
    """

    base_url = ""

    def __init__(self, path: str, timeout_s: float, api_version: str = "") -> None:
        self.api_version = api_version
        self._path, self._timeout_s = path, timeout_s

    def version(self) -> dict[str, Any]:
        """As `GET /version`, which starts programs of the engine: what the head of any response says."""
        with _request(self._connection(), "GET", "/_ping") as response:
            version = response.headers.get("Api-Version")
            name = "Podman Engine" if response.headers.get("Libpod-API-Version") else "Engine"
        if version is None:
            raise NoResponse("the response has no Api-Version, so it is not from a container engine")
        return {"ApiVersion": version, "Components": [{"Name": name}]}

    def info(self) -> Mapping[str, Any]:
        return self._get("/info")

    def inspect_image(self, image: str) -> Mapping[str, Any]:
        return self._get(f"/images/{quote(image, safe='/:')}/json")

    def create_container_from_config(self, config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        body, headers = json.dumps(config).encode(), {"Content-Type": "application/json"}
        with self._api("POST", "/containers/create", {"name": name}, body, headers) as response:
            return response.json()

    def inspect_container(self, container: str) -> Mapping[str, Any]:
        return self._get(f"/containers/{container}/json")

    def attach_socket(self, container: str, params: Mapping[str, Any]) -> socket.socket:
        """The connection below HTTP. Before the container starts: its output could follow the response at once."""
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        with self._api("POST", f"/containers/{container}/attach", params, headers=headers) as response:
            return response.connection.opened.dup()

    def post(self, url: str, *, params: Mapping[str, Any], stream: bool, timeout: float | None) -> Response:  # noqa: ARG002 (the SDK's)
        return _request(_Connection(self._path, timeout), "POST", f"{url}?{urlencode(params)}")

    def start(self, container: str) -> None:
        self._done("POST", f"/containers/{container}/start")

    def kill(self, container: str, signal: str) -> None:
        self._done("POST", f"/containers/{container}/kill", {"signal": signal})

    def resize(self, container: str, height: int, width: int) -> None:
        self._done("POST", f"/containers/{container}/resize", {"h": height, "w": width})

    def get_archive(self, container: str, path: str) -> tuple[Iterator[bytes], object]:
        response = self._api("GET", f"/containers/{container}/archive", {"path": path})
        return response.pieces(), None

    def put_archive(self, container: str, path: str, data: bytes) -> None:
        self._done("PUT", f"/containers/{container}/archive", {"path": path}, data)

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        self._done("DELETE", f"/containers/{container}", {"v": v, "force": force})

    def _get(self, path: str) -> Mapping[str, Any]:
        with self._api("GET", path) as response:
            return response.json()

    def _done(self, method: str, path: str, params: Mapping[str, Any] | None = None, body: bytes | None = None) -> None:
        with self._api(method, path, params, body) as response:
            response.read()

    def _api(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        query = f"?{urlencode(params)}" if params else ""
        return _request(self._connection(), method, f"/v{self.api_version}{path}{query}", body, headers)

    def _connection(self) -> _Connection:
        return _Connection(self._path, self._timeout_s)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.opened = self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Response:
    """Closes its connection at the end of a `with`."""

    def __init__(self, connection: _Connection, response: http.client.HTTPResponse) -> None:
        self.connection = connection
        self.headers, self.status, self.reason = response.headers, response.status, response.reason
        self._response = response

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
        self.connection.close()

    def read(self, size: int = _MOST_BYTES) -> bytes:
        with _no_response():
            return self._response.read(size)

    def pieces(self) -> Iterator[bytes]:
        with self:
            while piece := self.read(_PIECE):
                yield piece

    def json(self) -> dict[str, Any]:
        body = self.read()
        with _no_response():
            found = json.loads(body)
        if not isinstance(found, dict):
            raise NoResponse("the response is no JSON object")
        return found


def _request(
    connection: _Connection,
    method: str,
    url: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Raises NoResponse, or the SDK's APIError: the engine refuses the request."""
    try:
        with _no_response():
            connection.request(method, url, body, headers or {})
            response = Response(connection, connection.getresponse())
        if response.status >= 400:
            raise _refusal(response, url)
    except BaseException:
        connection.close()
        raise
    return response


@contextmanager
def _no_response() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise NoResponse("it accepts connections but does not respond") from error
    except http.client.IncompleteRead as error:
        raise NoResponse("it ended the connection") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NoResponse(str(error)) from error


def _refusal(response: Response, url: str) -> Exception:
    """The SDK's error."""
    from docker.errors import APIError, NotFound

    with response:
        text = response.read().decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError):
        text = json.loads(text)["message"]
    kind = NotFound if response.status == 404 else APIError
    parts = SimpleNamespace(status_code=response.status, reason=response.reason, url=url)
    return cast("Exception", kind(text, cast("Any", parts), text))
