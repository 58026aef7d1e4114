"""A program that answers the calls that conda-lock makes of `conda`, over py-rattler: the solver is real, conda is not.

`shim(folder)` writes it as `folder/conda`. It knows `create`, `install` and `update` with `--dry-run --json`, `list`,
`info`, `config`, and `--version`; virtual packages come from CONDA_OVERRIDE_* and from the rows named `__*` of the
`file://` channels, as conda-lock hands them over. What it answers was read in conda_lock/conda_solver.py (4.0.3).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import rattler


_ROOT = Path(__file__).parents[3]


def shim(folder: Path, name: str = "conda") -> Path:
    """Write the program into a folder, to be put on PATH. Each call adds a line of JSON to `folder/calls`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"sys.path.insert(0, {str(_ROOT)!r})\n"
        "from tests.support.machines.conda_shim import main\n"
        f"status = main(sys.argv[1:], {str(folder / 'calls')!r})\n"
        "sys.stdout.flush()\n"
        # py-rattler 0.28's threads may outlive the answer, and an interpreter that ends meanwhile crashes at times.
        "os._exit(status)\n"
    )
    path.chmod(0o755)
    return path


def calls(program: Path) -> list[dict[str, Any]]:
    """What the program was asked: `words`, and what of its `environ` is conda's."""
    file = program.parent / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def main(words: Sequence[str], record: str) -> int:
    environ = {key: value for key, value in os.environ.items() if key.startswith(("CONDA", "MAMBA", "PIP_", "HOME"))}
    with Path(record).open("a") as file:
        file.write(json.dumps({"words": list(words), "environ": environ}) + "\n")
    if "--version" in words:
        return _say("conda 0.0 (a test's, over py-rattler)")
    asked = _parser().parse_intermixed_args(words)
    if asked.command == "info":
        return _tell({"pkgs_dirs": [os.environ["CONDA_PKGS_DIRS"]], "platform": os.environ["CONDA_SUBDIR"]})
    if asked.command == "config":
        return _tell({"pkgs_dirs": [os.environ["CONDA_PKGS_DIRS"]]})
    if asked.command == "list":
        return _tell([_link(row) for row in _installed(Path(asked.prefix))])
    return _solved(asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="conda")
    parser.add_argument("command", choices=["create", "install", "update", "list", "info", "config"])
    parser.add_argument("--prefix", "-p", default="")
    parser.add_argument("--channel", "-c", action="append", default=[])
    for flag in ("--dry-run", "--json", "--override-channels", "--no-pip"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("specs", nargs="*")
    return parser


def _solved(asked: argparse.Namespace) -> int:
    from rattler.exceptions import SolverError

    try:
        rows = asyncio.run(_solve(asked))
    except SolverError as error:
        return _fail("LibMambaUnsatisfiableError", str(error))
    except Exception as error:
        traceback.print_exc()
        return _fail("CondaError", str(error))
    fetch = [_fetch(row) for row in rows]
    return _tell({"actions": {"FETCH": fetch, "LINK": [_link(row) for row in fetch]}, "dry_run": True, "success": True})


async def _solve(asked: argparse.Namespace) -> list[rattler.RepoDataRecord]:
    import rattler

    subdir = rattler.Subdir(os.environ["CONDA_SUBDIR"])
    channels = [rattler.Channel(url) for url in asked.channel]
    platforms = [subdir, rattler.Subdir("noarch")]
    gateway = rattler.Gateway(cache_dir=Path(os.environ["CONDA_PKGS_DIRS"]))
    installed = {str(row["fn"]) for row in _installed(Path(asked.prefix))}
    updated = {rattler.MatchSpec(spec).name.normalized for spec in asked.specs}
    locked: list[rattler.RepoDataRecord] = []
    if installed:
        names = [row["name"] for row in _installed(Path(asked.prefix)) if row["name"] not in updated]
        answer = await gateway.query(channels, platforms, names, recursive=False)
        locked = [row for rows in answer for row in rows if row.file_name in installed]
    return await rattler.solve(
        channels,
        [*asked.specs, *(row.name.normalized for row in locked)],
        gateway,
        platforms=platforms,
        virtual_packages=_virtual_packages(asked.channel, str(subdir)),
        locked_packages=locked,
        channel_relations="disabled",
    )


def _virtual_packages(channels: Sequence[str], subdir: str) -> list[rattler.GenericVirtualPackage]:
    import rattler

    found = {row["name"]: (row["version"], row["build"]) for row in _virtual_rows(channels, subdir)}
    for key, value in os.environ.items():
        if key.startswith("CONDA_OVERRIDE_") and value:
            name = f"__{key.removeprefix('CONDA_OVERRIDE_').lower()}"
            found[name] = ("1", value) if name == "__archspec" else (value, found.get(name, ("", "0"))[1])
    return [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.package.BuildString(build)
        )
        for name, (version, build) in sorted(found.items())
    ]


def _virtual_rows(channels: Sequence[str], subdir: str) -> Iterator[dict[str, str]]:
    for url in channels:
        if urlsplit(url).scheme == "file":
            rows = json.loads((Path(unquote(urlsplit(url).path)) / subdir / "repodata.json").read_text())["packages"]
            yield from (row for row in rows.values() if row["name"].startswith("__"))


def _installed(prefix: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(prefix.glob("conda-meta/*.json"))]


def _fetch(row: rattler.RepoDataRecord) -> dict[str, Any]:
    return {**json.loads(row.to_json()), "fn": row.file_name, "url": row.url, "channel": row.channel}


def _link(row: dict[str, Any]) -> dict[str, Any]:
    stem = str(row["fn"]).removesuffix(".conda").removesuffix(".tar.bz2")
    channel, _, subdir = str(row["url"]).rpartition("/")[0].rpartition("/")
    return {
        "base_url": channel,
        "build_number": row["build_number"],
        "build_string": row["build"],
        "channel": channel,
        "dist_name": stem,
        "name": row["name"],
        "platform": subdir,
        "version": row["version"],
    }


def _tell(value: object) -> int:
    return _say(json.dumps(value))


def _say(text: str) -> int:
    sys.stdout.write(f"{text}\n")
    return 0


def _fail(kind: str, message: str) -> int:
    """What conda says where it can't: an object on standard output."""
    _tell({"caused_by": "None", "error": f"{kind}: {message}", "exception_name": kind, "message": message})
    return 1
