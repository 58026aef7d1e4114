"""Builds images of specs with `[system] libraries = "auto"` and imports their direct dependencies in a container, with
the image's system packages and without them: `python -m bench.library_images SPEC...`.

The base is the tests' stand-in for NVIDIA's image, Debian 12, with its Python 3.11 in place of the spec's. Needs root
on Linux, debootstrap, docker-registry, a Docker engine, the package index, and 25 GB of disk for one image at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from docker import DockerClient
from packaging.utils import canonicalize_name

from bench.harness import Command, describe, published, run, say, table
from envspec.documents import parse_toml
from tests.support import e2e
from tests.support.machines import standin
from tests.support.machines.engine import connect, removed, run_in
from tests.support.servers.docker_registry import docker_registry

_NAME: Final = "envspec-bench-libraries:one"
_LIMIT_S: Final = 3600
_REASON: Final = 160
_PLATFORMS: Final = re.compile(r"(?m)^platforms = \[.*\]$")
_PYTHON: Final = re.compile(r'(?m)^python = ".*"$')
#: Without the packages of the system layer; the loader's cache is not read again for what is gone.
_WITHOUT: Final = 'dpkg --purge --force-all "$@" >/dev/null 2>&1; ldconfig; exec python -c "$IMPORTS"'


@dataclass(frozen=True, slots=True)
class Row:
    """added: Debian's packages for libraries. failed, failed_without: modules of direct dependencies that can't be
    imported, with the reason; with and without the packages of the system layer.
    """

    name: str
    packages: int
    direct: tuple[str, ...]
    added: tuple[str, ...]
    failed: dict[str, str]
    failed_without: dict[str, str]
    build_s: float


def spec_on(text: str, without: Sequence[str]) -> str:
    """The spec for the stand-in: its image, its Python, and the libraries that its packages load."""
    if "[system]" in text or "[image]" in text:
        raise SystemExit("a spec with [system] or [image] of its own can't be used here")
    for name in without:
        text = re.sub(rf'(?m)^ *"{re.escape(name)}\b(?!-).*",\n', "", text)
    text = _PLATFORMS.sub('platforms = ["linux-64"]', _PYTHON.sub('python = "3.11"', text, count=1), count=1)
    # The base's own Python has no shared library, which torchcodec links to.
    return (
        f'{text}\n[system]\napt = ["libpython3.11"]\nlibraries = "auto"\nsnapshot = false\n'
        f'[image]\nglibc = "{standin.GLIBC}"\n'
        f'base = "docker.io/{standin.REPOSITORY}:{standin.TAG}"\npython = "{standin.PYTHON}"\n'
    )


def measured(path: Path, without: Sequence[str], engine: DockerClient, registry: str) -> Row:
    """Lock, build, load and import one."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        text = spec_on(path.read_text(encoding="utf-8"), without)
        (folder / "spec.toml").write_text(text, encoding="utf-8")
        environ = {**os.environ, "ENVSPEC_REGISTRY_MIRRORS": f"docker.io={registry}"}
        _envspec(folder, environ, "lock", "spec.toml", "--output", "lock")
        started = time.perf_counter()
        with removed(engine, _NAME):
            _envspec(folder, environ, "image", "build", "lock", "--load", "--tag", _NAME)
            build_s = time.perf_counter() - started
            document = e2e.read(folder / "lock" / "envspec.lock")
            names = set(map(canonicalize_name, e2e.rows(document)))
            required = [canonicalize_name(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in _requirements(text)]
            direct = tuple(dict.fromkeys(name for name in required if name in names))
            found = _imports(engine, "python", "-c", e2e.IMPORTS)
            layer = _added(engine, registry)
            bare = _imports(engine, "sh", "-c", _WITHOUT, "sh", *layer)
    failed, failed_without = (_failed(each, direct) for each in (found, bare))
    why = [one for each in document["decision"] if each["what"] == "image.apt" for one in each["why"]]
    added = tuple(name for one in why if one["code"] == "apt-libraries" for name in one["packages"].split())
    return Row(path.stem, len(names), direct, added, failed, failed_without, build_s)


def _requirements(text: str) -> Sequence[str]:
    found: Sequence[str] = parse_toml(text)["pip"]["dependencies"]
    return found


def _added(engine: DockerClient, registry: str) -> list[str]:
    """The packages that the image has and its base does not."""
    command = ("dpkg-query", "--show", "--showformat", "${Package}\\n")
    base = f"{registry}/{standin.REPOSITORY}:{standin.TAG}"
    with removed(engine, base):
        engine.images.pull(base)
        own, below = (set(run_in(engine, image, *command).stdout.split()) for image in (_NAME, base))
    return sorted(own - below)


def _imports(engine: DockerClient, *words: str) -> dict[str, Any]:
    done = run_in(engine, _NAME, *words, timeout_s=_LIMIT_S, environment={"IMPORTS": e2e.IMPORTS})
    if done.status:
        raise SystemExit(done.output)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _failed(found: dict[str, Any], direct: Sequence[str]) -> dict[str, str]:
    failed = {}
    for module, text in found["failed"].items():
        distribution, _, why = text.partition(": ")
        if canonicalize_name(distribution) in direct:
            line = published(why.splitlines()[0])
            failed[module] = line if len(line) <= _REASON else f"{line[:_REASON]} ..."
    named = {*found["imported"].values(), *(text.partition(": ")[0] for text in found["failed"].values())}
    missing = set(direct) - set(map(canonicalize_name, named))
    return failed | dict.fromkeys(sorted(missing), "has no module")


def _envspec(folder: Path, environ: Mapping[str, str], *words: str) -> None:
    command: Command = [sys.executable, "-m", "envspec", *words]
    cost = run(command, cwd=folder, env=environ, limit_s=_LIMIT_S)
    if not cost.is_done:
        raise SystemExit(f"envspec {words[0]}: {cost.output}")
    say(cost.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 if every direct dependency can be imported."""
    parser = argparse.ArgumentParser(prog="python -m bench.library_images", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("specs", type=Path, nargs="+", metavar="SPEC")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="dependencies to leave out")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder, docker_registry(Path(folder)) as registry:
        standin.push(standin.layout(), registry)
        engine = connect()
        for path in options.specs:
            rows.append(measured(path, options.without, engine, registry))
            say(repr(rows[-1]))
        engine.close()
    head = [
        "project",
        "packages",
        "added",
        "direct dependencies",
        "not imported",
        "not imported without the system layer",
    ]
    lines = [
        [row.name, str(row.packages), ", ".join(row.added), str(len(row.direct))]
        + [", ".join(failed) or "none" for failed in (row.failed, row.failed_without)]
        for row in rows
    ]
    machine = describe()
    print(f"{machine['date']}, {machine['cores']} cores of an {machine['cpu']}, {machine['system']}\n")
    print("\n".join(table(head, lines)))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
