"""`python -m envspec.fetch.conda_link_worker`: rattler links conda packages in a process that can be killed.

rattler continues to write in its own threads when its caller is cancelled. A killed process does not, so that the
folder can be removed. It ends when its stdin does, which is when its parent was killed.

stdin: one line of JSON, see `conda_link.py`. stdout: lines of JSON, `{"linked": 3, "total": 90}`, last
`{"done": true}`, `{"error": "..."}` or, if a package must not be linked, `{"refused": "..."}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import convert

from envspec.fetch.conda_link import LinkedFiles
from envspec.models import CondaPackage
from envspec.resolve.conda.records import record_of

_write_lock = threading.Lock()


def _print(**values: object) -> None:
    with _write_lock:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


def _first_line() -> bytes:
    """The first line of stdin. Not by `sys.stdin`, whose buffer would wait for more."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            os._exit(1)
        line += more
    return line


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


class _Reporter:
    """rattler's callbacks: checks each package before it is linked, and prints the progress.

    unpacked: package name -> its folder in rattler's cache, its file name, its packed size.
    """

    def __init__(self, total: int, unpacked: Mapping[str, tuple[Path, str, int]], linked_files: LinkedFiles) -> None:
        self._total = total
        self._linked = 0
        self._unpacked = unpacked
        self._linked_files = linked_files

    def on_link_start(self, operation: int, package_name: str) -> int:
        """Exit before rattler writes a file of a package that must not be linked.

        A callback cannot stop rattler, which may link other packages at the same time.
        """
        folder: Path | None
        try:
            folder, filename, packed_bytes = self._unpacked[package_name]
            why = self._linked_files.problem_of(package_name, folder, packed_bytes)
        except BaseException as error:
            folder, filename, why = None, package_name, f"it can't be checked ({error!r})"
        if why is not None:
            _print(refused=f"{filename}: {why}")
            if folder is not None:
                # It may be an archive bomb.
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
        return operation

    def on_link_complete(self, index: int) -> None:  # noqa: ARG002 (rattler's signature)
        self._linked += 1
        _print(linked=self._linked, total=self._total)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: 0


async def _link(request: dict[str, Any]) -> None:
    from rattler import Subdir, install
    from rattler.package_cache import PackageCache, PackageCacheLayer, ValidationMode

    site = Path(request["site"])
    packages = [convert(entry["package"], CondaPackage) for entry in request["packages"]]
    records = [record_of(package) for package in packages]
    unpacked = {}
    for record, package, entry in zip(records, packages, request["packages"], strict=True):
        record.url = entry["archive"]
        folder = Path(request["cache"], package.file_stem)
        unpacked[package.name] = (folder, package.filename, entry["packed_bytes"])
    site_packages = None
    for package in packages:
        if package.name == "python":
            series = ".".join(package.version.split(".")[:2])
            site_packages = package.python_site_packages_path or f"lib/python{series}/site-packages"
    # Environments share these files by hard links: one that was edited in one must not get into another.
    layer = PackageCacheLayer(request["cache"]).with_validation_mode(ValidationMode.full())
    await install(
        records,
        target_prefix=site,
        alternative_target_prefix=request["prefix"],
        package_cache=PackageCache.from_layers([layer]),
        platform=Subdir(request["platform"]),
        installed_packages=[],
        ignored_packages=set(request["installed"]),
        execute_link_scripts=False,
        show_progress=False,
        reporter=_Reporter(len(records) - len(request["installed"]), unpacked, LinkedFiles(site_packages)),
    )
    for package in packages:
        if package.name in request["installed"]:
            continue
        # conda-meta names the package's channel, not the cached archive.
        path = site / "conda-meta" / f"{package.file_stem}.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        data.update(url=package.url, fn=package.filename)
        path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    from rattler.exceptions import InstallerError

    request = json.loads(_first_line())
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        asyncio.run(_link(request))
    except (InstallerError, OSError) as error:
        _print(error=str(error))
        return 1
    _print(done=True)
    return 0


if __name__ == "__main__":
    # Not a normal exit: rattler's threads may still release Python objects, and crash the interpreter (0.28.0).
    os._exit(main())
