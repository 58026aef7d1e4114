"""What an earlier folder of Python's path holds under the name of a locked module, and so hides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envspec.installed.distributions import Distribution


def shadows(found: Iterable[Distribution], path: Sequence[Path]) -> Iterator[tuple[Distribution, Path]]:
    """Each distribution with what hides a module of it. path: Python's, in its order, without its own library."""
    held = {folder: _names(folder) for folder in path}
    for each in found:
        if each.site not in held:
            continue
        for folder in path[: path.index(each.site)]:
            for hiding in _hiding(each, folder, held[folder]):
                yield each, hiding


def _names(folder: Path) -> dict[str, list[str]]:
    """Module -> the files or folders that may be it: `x`, `x.py`, `x.cpython-311-x86_64-linux-gnu.so`."""
    names: dict[str, list[str]] = {}
    try:
        for entry in folder.iterdir():
            if not entry.name.endswith((".dist-info", ".egg-info", ".pth")):
                names.setdefault(entry.name.split(".")[0], []).append(entry.name)
    except OSError:
        # Python can't look into it either.
        return {}
    return names


def _hiding(each: Distribution, folder: Path, names: dict[str, list[str]]) -> Iterator[Path]:
    inside = [row.path for row in each.rows or () if not row.path.startswith(("../", "/"))]
    for module in sorted({path.split("/")[0].split(".")[0] for path in inside} & names.keys()):
        for name in sorted(names[module]):
            if _hides(folder / name, inside):
                yield folder / name


def _hides(hiding: Path, paths: Sequence[str]) -> bool:
    if not hiding.is_dir():
        return hiding.suffix in (".py", ".pyc", ".so", ".pyd")
    if any((hiding / f"__init__{end}").exists() for end in (".py", ".pyc")):
        return True
    # A folder without it is a part of a namespace: it hides what it holds itself, and only where the locked one is a
    # part of that namespace too.
    top = f"{hiding.name}/"
    if f"{top}__init__.py" in paths:
        return False
    return any(path.startswith(top) and (hiding.parent / path).exists() for path in paths)
