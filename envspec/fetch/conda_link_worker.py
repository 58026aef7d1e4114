"""`python -m envspec.fetch.conda_link_worker`: rattler links conda packages in a process that can be killed.

rattler goes on writing in threads of its own when its caller is cancelled. A process that is ended writes no more, so
the folder can be removed. It ends by itself as soon as its stdin does: when the run that started it was killed.

stdin: one line of JSON, see `packages.py`. stdout: lines of JSON, `{"linked": 3, "total": 90}`, at last
`{"done": true}`, `{"error": "..."}` or `{"refused": "..."}`, when a package must not be linked.
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

from envspec.fetch.conda_link import LinkedFiles
from envspec.models import CondaPackage
from envspec.resolve.conda.records import record_of

_write_lock = threading.Lock()


def _tell(**values: object) -> None:
    with _write_lock:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()


def _first_line() -> bytes:
    """What stdin holds up to the first line's end. Not by `sys.stdin`, whose buffer would wait for more."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            os._exit(1)
        line += more
    return line


def _end_with_the_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


class _Reporter:
    """rattler's callbacks: a package is checked when its link begins, and the end of each link is told.

    unpacked: a package's name -> the folder in rattler's cache that it is linked from, its file name and its size.
    """

    def __init__(self, total: int, unpacked: Mapping[str, tuple[Path, str, int]], environment: LinkedFiles) -> None:
        self._total = total
        self._linked = 0
        self._unpacked = unpacked
        self._environment = environment

    def on_link_start(self, operation: int, package_name: str) -> int:
        """End the process before rattler writes anything of a package that must not be linked.

        rattler takes no answer from a callback, and it may link others at the same time.
        """
        folder: Path | None
        try:
            folder, filename, packed_bytes = self._unpacked[package_name]
            why = self._environment.fault_of(package_name, folder, packed_bytes)
        except BaseException as fault:
            folder, filename, why = None, package_name, f"it can't be checked ({fault!r})"
        if why is not None:
            _tell(refused=f"{filename}: {why}")
            if folder is not None:
                # Nothing of it is kept: it may be a bomb.
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)
        return operation

    def on_link_complete(self, index: int) -> None:  # noqa: ARG002 (rattler's signature)
        self._linked += 1
        _tell(linked=self._linked, total=self._total)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: 0


async def _link(order: dict[str, Any]) -> None:
    from rattler import Subdir, install
    from rattler.package_cache import PackageCache, PackageCacheLayer, ValidationMode

    site = Path(order["site"])
    packages = [_package(row["package"]) for row in order["rows"]]
    records = [record_of(package) for package in packages]
    for record, row in zip(records, order["rows"], strict=True):
        record.url = row["archive"]
    python = next((each for each in packages if each.name == "python"), None)
    series = ".".join(python.version.split(".")[:2]) if python else ""
    site_packages = (python.python_site_packages_path or f"lib/python{series}/site-packages") if python else None
    # Environments share these files by hard links: one that was edited in an environment must not come into another.
    layer = PackageCacheLayer(order["cache"]).with_validation_mode(ValidationMode.full())
    await install(
        records,
        target_prefix=site,
        alternative_target_prefix=order["prefix"],
        package_cache=PackageCache.from_layers([layer]),
        platform=Subdir(order["platform"]),
        installed_packages=[],
        ignored_packages=set(order["there"]),
        execute_link_scripts=False,
        show_progress=False,
        reporter=_Reporter(
            len(records) - len(order["there"]),
            {
                each.name: (Path(order["cache"], stem_of(each)), each.filename, row["packed_bytes"])
                for each, row in zip(packages, order["rows"], strict=True)
            },
            LinkedFiles(site_packages),
        ),
    )
    for package in packages:
        if package.name in order["there"]:
            continue
        _name_origin(site / "conda-meta" / f"{stem_of(package)}.json", package)


def stem_of(package: CondaPackage) -> str:
    """How rattler and conda name what belongs to a package."""
    return f"{package.name}-{package.version}-{package.build}"


def _package(fields: dict[str, Any]) -> CondaPackage:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return CondaPackage(**given)


def _name_origin(path: Path, package: CondaPackage) -> None:
    """conda-meta names the channel that the package is from, not the cache that rattler took it from."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data.update(url=package.url, fn=package.filename)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    """Link what stdin says; the exit code is 0 when it is done."""
    from rattler.exceptions import InstallerError

    order = json.loads(_first_line())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        asyncio.run(_link(order))
    except (InstallerError, OSError) as fault:
        _tell(error=str(fault))
        return 1
    _tell(done=True)
    return 0


if __name__ == "__main__":
    # Not the interpreter's own end: rattler's threads may still let go of Python's objects, and crash it (0.28.0).
    os._exit(main())
