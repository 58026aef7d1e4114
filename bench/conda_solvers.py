"""Programs of `bench.conda` that run in processes of their own; each imports no more than its tool does.

    python conda_solvers.py bare QUESTION CACHE     py-rattler alone
    python conda_solvers.py stage QUESTION CACHE    envspec's conda stage alone
    python conda_solvers.py conda WORDS             the `conda` that conda-lock calls

QUESTION: JSON, see `bench.conda.Question`. The first two print `subdir URL` lines. envspec's requirements don't say
which packages have to be CUDA builds: finding that out is its work. The third one is as fast as a conda can be, so that
no time is conda's own: it answers `conda --version` and `conda create --dry-run --json --channel URL ... SPEC ...`. The
platform is CONDA_SUBDIR, virtual packages are what conda-lock puts into CONDA_OVERRIDE_*.
Source: conda_lock/conda_solver.py and virtual_package.py, 4.0.3.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rattler import GenericVirtualPackage, RepoDataRecord

    from envspec.resolve.types import CondaRequest

_OVERRIDE = "CONDA_OVERRIDE_"


async def bare(question: dict[str, Any], cache: Path) -> list[list[RepoDataRecord]]:
    """The records of every platform, all of them at the same time over one gateway, as anybody would write it."""
    import rattler

    gateway = rattler.Gateway(cache_dir=cache)
    channels = [rattler.Channel(question["channel"])]
    solves = [
        rattler.solve(
            channels,
            platform["complete"],
            gateway,
            platforms=[platform["subdir"], "noarch"],
            virtual_packages=_virtual(platform["virtual_packages"]),
            constraints=platform["constraints"],
            exclude_newer=datetime.fromisoformat(question["as_of"]),
            channel_relations="disabled",
        )
        for platform in question["platforms"]
    ]
    return await asyncio.gather(*solves)


def requests(question: dict[str, Any]) -> list[CondaRequest]:
    """envspec's own form of the question."""
    from envspec.models import CudaVersion, Platform
    from envspec.resolve.types import Channel, CondaRequest, VirtualPackage

    url = question["channel"]
    return [
        CondaRequest(
            platform=Platform(platform["subdir"]),
            channels=(Channel(url, url, url),),
            requirements=tuple(platform["requirements"]),
            virtual_packages=tuple(VirtualPackage(*fields) for fields in platform["virtual_packages"]),
            as_of=datetime.fromisoformat(question["as_of"]),
            constraints=tuple(platform["constraints"]),
            cuda=CudaVersion.parse(platform["cuda"]) if platform["cuda"] else None,
        )
        for platform in question["platforms"]
    ]


def _bare(question: dict[str, Any], cache: Path) -> None:
    for platform, rows in zip(question["platforms"], asyncio.run(bare(question, cache)), strict=True):
        _print(platform["subdir"], (row.url for row in rows))


def _stage(question: dict[str, Any], cache: Path) -> None:
    from envspec.context import Context
    from envspec.resolve.conda.solve import solve_all
    from envspec.resolve.conda.solver import Rattler

    context = Context.from_environment({**os.environ, "ENVSPEC_CACHE_DIR": str(cache)})
    for answer in asyncio.run(solve_all(requests(question), Rattler(), context)):
        _print(answer.request.platform.value, (package.url for package in answer.packages))


def _conda(words: Sequence[str]) -> None:
    if "--version" in words:
        print("conda 0")
        return
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("command", choices=["create"])
    parser.add_argument("--prefix")
    parser.add_argument("--channel", action="append", default=[])
    for flag in ("--dry-run", "--json", "--override-channels"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("specs", nargs="+")
    given = parser.parse_intermixed_args(words)
    rows = asyncio.run(_create(given.channel, given.specs))
    fetch = [{**json.loads(row.to_json()), "fn": row.file_name, "url": row.url, "channel": row.channel} for row in rows]
    json.dump({"actions": {"FETCH": fetch, "LINK": []}, "success": True}, sys.stdout)


async def _create(channels: Sequence[str], specs: Sequence[str]) -> list[RepoDataRecord]:
    import rattler

    virtual = []
    for key, value in sorted(os.environ.items()):
        if key.startswith(_OVERRIDE) and value:
            name = f"__{key.removeprefix(_OVERRIDE).lower()}"
            # `__archspec` has a version of 1, and what is overridden is its build; of the others it is the version.
            virtual.append((name, *(("1", value) if name == "__archspec" else (value, "0"))))
    return await rattler.solve(
        [rattler.Channel(url) for url in channels],
        list(specs),
        rattler.Gateway(cache_dir=Path(os.environ["CONDA_PKGS_DIRS"])),
        platforms=[rattler.Subdir(os.environ["CONDA_SUBDIR"]), rattler.Subdir("noarch")],
        virtual_packages=_virtual(virtual),
        channel_relations="disabled",
    )


def _virtual(rows: Iterable[Sequence[str]]) -> list[GenericVirtualPackage]:
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.package.build_string import BuildString

    return [GenericVirtualPackage(PackageName(name), Version(ver), BuildString(build)) for name, ver, build in rows]


def _print(subdir: str, urls: Iterable[str]) -> None:
    for url in sorted(urls):
        print(subdir, url)


if __name__ == "__main__":
    if sys.argv[1] == "conda":
        _conda(sys.argv[2:])
    else:
        {"bare": _bare, "stage": _stage}[sys.argv[1]](json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
    sys.stdout.flush()
    # rattler's threads may crash an interpreter that ends in its own way (0.28.0).
    os._exit(0)
