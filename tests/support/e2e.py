"""The stand-in's spec, for a registry on loopback that nobody knew when it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from envspec import toml

SPEC: Final = Path(__file__).parents[1] / "e2e" / "pytorch-2.9-standin.toml"
#: What it stands in for.
ORIGINAL: Final = Path(__file__).parents[2] / "specs" / "pytorch-2.9.toml"
ORIGINAL_LOCK: Final = Path(__file__).parents[2] / "locks" / "pytorch-2.9" / "envspec.lock"
_MIRROR: Final = "127.0.0.1:5000"

#: Where the stand-in's packages are others than those of the original's lock, and why.
DIFFERENCES: Final = {
    "soupsieve": ("4.1.1", "2.10", "needs Python >=3.11.5, the target has 3.11.2"),
}


def spec_text(registry: str) -> str:
    """The spec, its mirror at that host and port."""
    text = SPEC.read_text(encoding="utf-8")
    assert text.count(_MIRROR) == 1
    return text.replace(_MIRROR, registry)


def rows(document: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """name -> (version, file) of a lock's packages on its one platform."""
    (resolution,) = document["resolution"]
    return {package["name"]: (package["version"], package["file"]) for package in resolution["package"]}


def read(path: Path) -> dict[str, Any]:
    return toml.loads(path.read_text(encoding="utf-8"))
