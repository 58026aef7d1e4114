"""The test channel is what it says: real archives, rows that fit them, environments that run, a server like others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import HTTPError

import pytest
import rattler
from rattler.index.index import index_fs
from rattler.package_streaming import extract

from tests.support import conda_packages
from tests.support.conda_archive import Form, archive, distribution, impostor, zstd_stored
from tests.support.conda_channel import SUBDIRS, CondaChannel, write
from tests.support.conda_server import CondaServer
from tests.support.faults import Body, Status


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    return write(tmp_path_factory.mktemp("channels") / "forge", conda_packages.forge())


#: SHA-256 over the names and hashes of all archives for a fixed Python.
_GOLDEN = "3cfb15ea7f8f0908a0f6afe094292f048d3ac9b753be4d763b615e893259c4ea"


def test_the_same_bytes_on_every_machine() -> None:
    both = [conda_packages.forge(conda_packages.GOLDEN_PYTHON), conda_packages.corp(conda_packages.GOLDEN_PYTHON)]
    told = "\n".join(f"{one.filename} {one.sha256}" for archives in both for one in archives)
    assert hashlib.sha256(told.encode()).hexdigest() == _GOLDEN


@pytest.mark.parametrize("size_bytes", [0, 1, 1 << 17, (1 << 17) + 1, 400_000])
def test_stored_frames_are_read_by_others(size_bytes: int, tmp_path: Path) -> None:
    data = (b"0123456789abcdef" * (size_bytes // 16 + 1))[:size_bytes]
    packed = archive("big", "1.0", {"share/big.bin": data})
    (tmp_path / packed.filename).write_bytes(packed.data)
    extract(tmp_path / packed.filename, tmp_path / "out")
    assert (tmp_path / "out/share/big.bin").read_bytes() == data
    assert len(zstd_stored(data)) <= size_bytes + 13 + 3 * (1 + size_bytes // (1 << 17))


def test_rows_are_what_an_indexer_reads_in_the_archives(channel: CondaChannel, tmp_path: Path) -> None:
    shutil.copytree(channel.folder, tmp_path / "copy")
    for subdir in SUBDIRS:
        (tmp_path / "copy" / subdir / "repodata.json").unlink()
        (tmp_path / "copy" / subdir / "repodata.json.zst").unlink()
    asyncio.run(index_fs(tmp_path / "copy", write_zst=False, write_shards=False))
    for subdir in SUBDIRS:
        assert _rows(channel.folder, subdir) == _rows(tmp_path / "copy", subdir)


def test_an_environment_of_it_runs(channel: CondaChannel, tmp_path: Path) -> None:
    prefix = tmp_path / "env"
    rows = _solve(channel.url, ["python", "greet", "transformers", "pathwise", "oldstyle", "pytorch * cuda*"])
    asyncio.run(rattler.install(rows, prefix, cache_dir=tmp_path / "cache"))
    code = (
        "import sys, torch, transformers; print(sys.prefix, torch.__version__, torch.build, transformers.__version__)"
    )
    assert _run(prefix / "bin/python", "-c", code) == f"{prefix} 2.8.0 cu129 4.57.1"
    assert _run(prefix / "bin/greet") == "greet 1.0"
    assert _run(prefix / "bin/pathwise") == str(prefix)
    assert (prefix / "etc/pathwise.conf").read_text() == f"root = {prefix}\nshare = {prefix}/share\n"
    held = (prefix / "lib/libpathwise.so").read_bytes()
    assert f"{prefix}/share/pathwise\0".encode() in held
    assert held.endswith(b"\0after\0")
    code = "from importlib.metadata import distributions as d; print(sorted(one.name for one in d()))"
    assert _run(prefix / "bin/python", "-c", code) == str(
        ["filelock", "greet", "numpy", "torch", "transformers", "typing_extensions"]
    )


@pytest.mark.parametrize("form", Form)
def test_an_impostor_has_the_name_and_the_size(form: Form, tmp_path: Path) -> None:
    honest = archive("tool", "1.0", distribution("tool", "1.0"), python="noarch", form=form)
    false = impostor(honest)
    assert false.filename == honest.filename
    if form is Form.CONDA:  # bzip2 compresses
        assert len(false.data) == len(honest.data)
    assert false.sha256 != honest.sha256
    (tmp_path / false.filename).write_bytes(false.data)
    extract(tmp_path / false.filename, tmp_path / "out")


def test_a_channel_is_solved_over_http(channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}) as server:
        over_http = _solve(server.channel_url("forge"), ["python", "greet"])
    from_file = _solve(channel.url, ["python", "greet"])
    assert [(row.file_name, row.sha256) for row in over_http] == [(row.file_name, row.sha256) for row in from_file]


def test_the_server_validates_and_ranges(channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}) as server:
        greet = channel.find("greet")
        url = server.root + server.path(greet)
        status, body, headers = _get(url)
        assert (status, body) == (200, greet.data)
        assert _get(url, {"If-None-Match": headers["ETag"]})[:2] == (304, b"")
        assert _get(url, {"Range": "bytes=-100"})[:2] == (206, greet.data[-100:])
        assert _get(f"{server.channel_url('forge')}/noarch/repodata_shards.msgpack.zst")[0] == 404
        assert _get(f"{server.channel_url('forge')}/../secret")[0] == 404


def test_the_server_asks_for_credentials(channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}, credentials=("me", "secret")) as server:
        assert _get(f"{server.channel_url('forge')}/noarch/repodata.json")[0] == 401
        assert server.channel_url_with_credentials("forge") == f"http://me:secret@127.0.0.1:{server.port}/forge"
        rows = _solve(server.channel_url_with_credentials("forge"), ["tzdata"])
    assert [row.file_name for row in rows] == [channel.find("tzdata").filename]


def test_the_server_asks_for_a_token(channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}, prefix="/t/secret") as server:
        assert _get(f"{server.channel_url('forge')}/noarch/repodata.json")[0] == 200
        assert _get(f"http://127.0.0.1:{server.port}/forge/noarch/repodata.json")[0] == 404


def test_the_server_fails_where_it_is_told_to(channel: CondaChannel) -> None:
    with CondaServer({"forge": channel}) as server:
        greet = channel.find("greet")
        server.fail(server.path(greet), Body(impostor(greet).data), times=1)
        server.fail("/forge/noarch/*.json", Status(500))
        assert _get(server.root + server.path(greet))[1] == impostor(greet).data
        assert _get(server.root + server.path(greet))[1] == greet.data
        assert _get(f"{server.channel_url('forge')}/noarch/repodata.json")[0] == 500


def _rows(folder: Path, subdir: str) -> dict[str, object]:
    document = json.loads((folder / subdir / "repodata.json").read_text())
    # The indexer adds the moment of its run, leaves out what is empty and spells requirements anew.
    told = ("name", "version", "build", "build_number", "noarch", "subdir", "timestamp", "md5", "sha256", "size")
    return {
        key: {name: {field: row.get(field) for field in told} for name, row in document[key].items()}
        for key in ("packages", "packages.conda")
    }


def _solve(url: str, specs: Sequence[str]) -> list[rattler.RepoDataRecord]:
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.package.BuildString("0")
        )
        for name, version in (("__glibc", "2.39"), ("__linux", "5.10"), ("__unix", "0"), ("__cuda", "12.9"))
    ]
    sources = rattler.SourceConfig(sharded_enabled=False)
    gateway = rattler.Gateway(default_config=sources)
    channel = rattler.Channel(url)
    solving = rattler.solve([channel], list(specs), gateway, platforms=["linux-64", "noarch"], virtual_packages=virtual)
    return sorted(asyncio.run(_awaited(solving)), key=lambda row: row.file_name)


async def _awaited(solving: object) -> list[rattler.RepoDataRecord]:
    return await solving  # type: ignore[misc, no-any-return]


def _run(*command: object) -> str:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True).stdout.strip()


def _get(url: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes, Mapping[str, str]]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers or {})), timeout=10) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except HTTPError as error:
        return error.code, error.read(), dict(error.headers)
