"""The `conda` that conda-lock calls here, over py-rattler: as fast as a conda can be, so that no time is conda's own.

It answers `conda --version` and `conda create --dry-run --json --channel URL ... SPEC ...`, nothing else. The platform
is CONDA_SUBDIR, virtual packages are what conda-lock puts into CONDA_OVERRIDE_*.
Source: conda_lock/conda_solver.py and virtual_package.py, 4.0.3.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rattler import GenericVirtualPackage, RepoDataRecord

_OVERRIDE = "CONDA_OVERRIDE_"


def virtual_packages() -> list[GenericVirtualPackage]:
    """`__archspec` has a version of 1, and what is overridden is its build; of the others it is the version."""
    from rattler import GenericVirtualPackage, PackageName, Version
    from rattler.package.build_string import BuildString

    found = []
    for key, value in sorted(os.environ.items()):
        if key.startswith(_OVERRIDE) and value:
            name = f"__{key.removeprefix(_OVERRIDE).lower()}"
            version, build = ("1", value) if name == "__archspec" else (value, "0")
            found.append(GenericVirtualPackage(PackageName(name), Version(version), BuildString(build)))
    return found


async def solve(channels: Sequence[str], specs: Sequence[str]) -> list[RepoDataRecord]:
    import rattler

    return await rattler.solve(
        [rattler.Channel(url) for url in channels],
        list(specs),
        rattler.Gateway(cache_dir=Path(os.environ["CONDA_PKGS_DIRS"])),
        platforms=[rattler.Subdir(os.environ["CONDA_SUBDIR"]), rattler.Subdir("noarch")],
        virtual_packages=virtual_packages(),
        channel_relations="disabled",
    )


def main() -> None:
    if "--version" in sys.argv:
        print("conda 0")
        return
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("command", choices=["create"])
    parser.add_argument("--prefix")
    parser.add_argument("--channel", action="append", default=[])
    for flag in ("--dry-run", "--json", "--override-channels"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("specs", nargs="+")
    asked = parser.parse_intermixed_args()
    rows = asyncio.run(solve(asked.channel, asked.specs))
    fetch = [{**json.loads(row.to_json()), "fn": row.file_name, "url": row.url, "channel": row.channel} for row in rows]
    json.dump({"actions": {"FETCH": fetch, "LINK": []}, "success": True}, sys.stdout)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # rattler's threads may crash an interpreter that ends in its own way (0.28.0).
    os._exit(0)
