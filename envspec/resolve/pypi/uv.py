"""uv as the resolver: `uv pip compile` for one exact target."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

from packaging.version import Version

from envspec.models import Platform, Target
from envspec.resolve.pypi.index.view import Bodies, normalised
from envspec.resolve.pypi.resolver import BuildFailed, EngineFault, Pins, Place, Request, Unsolvable, read_pins

_FAILED: Final = re.compile(r"Failed to (?:download and )?build(?: `([A-Za-z0-9._-]+)==([^`\s]+)`)?")
#: The glibc levels that uv has names for (`uv pip compile --help`, 0.9 to 0.13).
_GLIBC_MINORS: Final = (17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40)


class Uv:
    """Knows every platform and Python, reads metadata and no wheels."""

    @property
    def version(self) -> str:
        return f"uv {version('uv')}"

    def unable(self, target: Target) -> str | None:  # noqa: ARG002 (uv resolves for any target)
        return None

    def bodies(self, request: Request) -> Bodies:  # noqa: ARG002 (uv fetches a wheel only to build with it)
        return Bodies.WHOLE

    async def resolve(self, request: Request, place: Place) -> Pins:
        from uv import find_uv_bin

        pins = place.work / "pins.txt"
        command = [
            find_uv_bin(),
            *("pip", "compile", "-", "--quiet", "--no-config", "--color=never"),
            *("--no-header", "--no-annotate", "--no-progress"),
            *("--default-index", place.simple_url),
            *("--cache-dir", str(place.cache / "uv")),
            *("--python", sys.executable, "--no-python-downloads"),
            *("--python-version", request.target.python.version),
            *("--python-platform", platform_of(request.target)),
            *(() if request.sdists else ("--only-binary", ":all:")),
            *_constraints(request, place.work / "constraints.txt"),
            *_preferences(request, pins),
        ]
        environ = place.environ()
        if request.target.macos is not None:
            environ["MACOSX_DEPLOYMENT_TARGET"] = ".".join(map(str, request.target.macos))
        stdin = "\n".join(request.requirements) + "\n"
        done = await place.run(command, environ, stdin, reads=[Path(command[0])])
        if done.status == 0:
            return read_pins(pins.read_text(encoding="utf-8") if request.preferences else done.stdout)
        if found := _FAILED.search(done.stderr):
            raise BuildFailed(told(done.stderr), (normalised(found[1]), Version(found[2])) if found[1] else None)
        if "No solution found" in done.stderr or done.status == 1:
            raise Unsolvable(told(done.stderr))
        raise EngineFault(f"uv ended with status {done.status}: {done.stderr.strip()}", hint="run again with --debug")


def _constraints(request: Request, file: Path) -> tuple[str, ...]:
    if not request.bounds:
        return ()
    file.write_text("\n".join(request.bounds) + "\n", encoding="utf-8")
    return ("--constraints", str(file))


def _preferences(request: Request, file: Path) -> tuple[str, ...]:
    """uv keeps the pins of the file that it is to write, where it can; then its answer is there alone."""
    if not request.preferences:
        return ()
    file.write_text("".join(f"{name}=={version}\n" for name, version in request.preferences), encoding="utf-8")
    return ("--output-file", str(file))


def platform_of(target: Target) -> str:
    """uv's name of a platform: the nearest glibc below will do, since its index holds no wheels above the target's."""
    if target.platform is Platform.OSX_ARM64:
        return "aarch64-apple-darwin"
    if target.platform is Platform.WIN_64:
        return "x86_64-pc-windows-msvc"
    machine = "x86_64" if target.platform is Platform.LINUX_64 else "aarch64"
    minor = max((known for known in _GLIBC_MINORS if target.glibc and known <= target.glibc[1]), default=17)
    return f"{machine}-manylinux_2_{minor}"


def told(stderr: str) -> str:
    """uv's explanation as one line: its headline, its drawing and its hints about its own options are left out.

    It calls the target's Python `current` where an interpreter of that very patch runs it, `requested` elsewhere: the
    same on every machine here.
    """
    text = re.sub(r"^\s*(?:\u00d7|\u2570\u2500\u25b6|\u2502|error:)\s?", "", stderr, flags=re.MULTILINE)
    text = re.split(r"\n[^\S\n]*(?:hint:|help:)", text)[0]
    _, headline, reason = text.partition("No solution found when resolving dependencies")
    text = re.sub(r"^\s*:?\s*(?:cause:)?", "", reason) if headline else text
    text = re.sub(r"(?:current|requested) Python version \((?:>=)?([\d.]+)\)", r"target's Python (\1)", text)
    return " ".join(text.split()) or "uv found no solution and did not say why"
