"""What envspec's conda stage costs alone: `python conda_stage.py QUESTION CACHE`, the same question as conda_bare.py's.

Unlike py-rattler's, these requirements don't say which packages have to be CUDA builds: to find that out is its work.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from envspec.context import Context
from envspec.models import CudaVersion, Platform
from envspec.resolve.conda.rattler import Rattler
from envspec.resolve.conda.solve import solve_all
from envspec.resolve.types import Channel, CondaRequest, VirtualPackage


def requests(question: dict[str, Any]) -> list[CondaRequest]:
    """envspec's own form of the question."""
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


def main() -> None:
    asked = requests(json.loads(Path(sys.argv[1]).read_text()))
    world = Context.from_environment({**os.environ, "ENVSPEC_CACHE_DIR": sys.argv[2]})
    for answer in asyncio.run(solve_all(asked, Rattler(), world)):
        for url in sorted(package.url for package in answer.packages):
            print(answer.request.platform.value, url)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # rattler's threads may crash an interpreter that ends in its own way (0.28.0).
    os._exit(0)
