"""Conda channels on 127.0.0.1, with the faults and the records of `IndexServer`.

    with CondaServer({"forge": channel}) as server:
        server.fail("/forge/noarch/repodata.json*", Stall())
        solve(server.channel_url("forge"))

It answers ranges, validates by ETag, and asks for a user and a password (or, by `prefix="/t/TOKEN"`, for a token in the
path) where a test says so. A swapped archive: `fail(server.path(it), Body(impostor(it).data))`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.support.builders.conda_archive import CondaArchive
from tests.support.builders.conda_channel import CondaChannel
from tests.support.servers.faults import Answer
from tests.support.servers.index import IndexServer, _ranged

_KINDS: Final = {".json": "application/json", ".zst": "application/zstd"}


class CondaServer(IndexServer):
    """Serves each channel's folder under its name, as it is at the request."""

    def __init__(
        self,
        channels: Mapping[str, CondaChannel],
        *,
        credentials: tuple[str, str] | None = None,
        delay_s: float = 0.0,
        prefix: str = "",
    ) -> None:
        super().__init__(credentials=credentials, delay_s=delay_s, prefix=prefix)
        self._channels = dict(channels)

    def channel_url(self, name: str) -> str:
        return f"{self.root}/{name}"

    def channel_url_with_credentials(self, name: str) -> str:
        user, password = self.credentials or ("", "")
        return self.channel_url(name).replace("://", f"://{user}:{password}@") if user else self.channel_url(name)

    def path(self, archive: CondaArchive) -> str:
        """The path of an archive, to give to `fail` or `requests_for`; of the first channel that has it."""
        for name, channel in self._channels.items():
            if archive in channel.archives:
                return f"/{name}/{archive.subdir}/{archive.filename}"
        raise LookupError(archive.stem)

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        if not self._is_allowed(headers):
            return Answer(401, b"credentials needed\n", {"WWW-Authenticate": 'Basic realm="channel"'})
        name, _, below = path.lstrip("/").partition("/")
        channel = self._channels.get(name)
        file = channel.folder / below if channel and ".." not in below else None
        if file is None or not file.is_file():
            return Answer(404, b"no such file\n")
        kind = _KINDS.get(file.suffix, "application/octet-stream")
        whole = Answer(200, file.read_bytes(), {"Content-Type": kind})
        return _ranged(self._tagged(whole, headers), headers, self.dialect.ranges)
