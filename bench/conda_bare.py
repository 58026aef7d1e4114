"""What py-rattler costs alone: `python conda_bare.py QUESTION CACHE` solves and prints `subdir URL` lines.

QUESTION: JSON, see `bench.conda_questions`. All platforms at the same time over one gateway, as anybody would write it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import rattler
from rattler.package.build_string import BuildString


async def answers(question: dict[str, Any], cache: Path) -> list[list[rattler.RepoDataRecord]]:
    """The rows of every platform, in the question's order."""
    gateway = rattler.Gateway(cache_dir=cache)
    channels = [rattler.Channel(question["channel"])]
    as_of = datetime.fromisoformat(question["as_of"])
    solves = [
        rattler.solve(
            channels,
            platform["complete"],
            gateway,
            platforms=[platform["subdir"], "noarch"],
            virtual_packages=[
                rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), BuildString(build))
                for name, version, build in platform["virtual_packages"]
            ],
            constraints=platform["constraints"],
            exclude_newer=as_of,
            channel_relations="disabled",
        )
        for platform in question["platforms"]
    ]
    return await asyncio.gather(*solves)


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    found = asyncio.run(answers(question, Path(sys.argv[2])))
    for platform, rows in zip(question["platforms"], found, strict=True):
        for url in sorted(row.url for row in rows):
            print(platform["subdir"], url)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # rattler's threads may crash an interpreter that ends in its own way (0.28.0).
    os._exit(0)
