"""What reading the libraries of wheels costs: `python -m bench.libraries [SITE-PACKAGES...]`.

Warm: DT_NEEDED and GPU code of 200 wheels from the cache, and what of it is missing. With folders: DT_NEEDED of every
library that is installed there.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from envspec.facts import load_facts
from envspec.facts.gpu import capabilities_of, without_code
from envspec.image.libraries import missing_libraries, read_libraries
from envspec.io.cache import read_wheel_content, write_wheel_content
from envspec.models import GpuCodeFound, Library, Package, WheelContent, WheelFile

_WHEELS = 200
#: scipy has 115 extension modules, torch 30 libraries; most wheels fewer.
_LIBRARIES = 20

_T = TypeVar("_T")


def _timed(what: str, run: Callable[[], _T]) -> _T:
    started = time.perf_counter()
    found = run()
    sys.stdout.write(f"{what}: {time.perf_counter() - started:.3f} s\n")
    return found


def _package(number: int) -> Package:
    file = WheelFile("default", f"p{number}-1.0-py3-none-any.whl", f"{number:064x}", 1)
    return Package(f"p{number}", "1.0", file, ())


def _content(number: int) -> WheelContent:
    needed = ("libc.so.6", "libm.so.6", "libGL.so.1", f"libown{number}.so.1")
    modules = tuple(Library(f"m{each}.cpython-312-x86_64-linux-gnu.so", "", needed) for each in range(_LIBRARIES))
    own = Library(f"libown{number}.so.1", f"libown{number}.so.1", ("libc.so.6",), ("$ORIGIN",))
    return WheelContent(GpuCodeFound(("sm_80", "sm_90"), ("compute_90",)), tuple(sorted((*modules, own))))


def main() -> None:
    packages = [_package(number) for number in range(_WHEELS)]
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for number, package in enumerate(packages):
            write_wheel_content(cache, package.file.sha256, _content(number))

        def warm() -> int:
            facts = load_facts()
            read = {each: found for each in packages if (found := read_wheel_content(cache, each.file.sha256))}
            contents = {each: content.libraries for each, content in read.items()}
            gpus = capabilities_of(facts, ("T4", "H100"))
            lost = [without_code(gpus, content.gpu_code) for content in read.values()]
            missing = list(missing_libraries(contents, "ubuntu24.04", {"libc.so.6", "libm.so.6"}.__contains__, facts))
            assert len(missing) == len(lost) == _WHEELS
            return sum(len(each) for each in contents.values())

        count = _timed(f"{_WHEELS} wheels from the cache, judged", warm)
        sys.stdout.write(f"  {count} libraries\n")
    for site in sys.argv[1:]:
        found = _timed(site, lambda: list(read_libraries(Path(site).rglob("*"))))  # noqa: B023
        sys.stdout.write(f"  {len(found)} libraries\n")


if __name__ == "__main__":
    main()
