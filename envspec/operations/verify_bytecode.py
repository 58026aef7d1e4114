"""Bytecode compared with its source by code: the environment's own Python compiles each module again."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from envspec.errors import UnfitMachine
from envspec.io.process import run
from envspec.structs import replace
from envspec.verifier import bytecode_worker
from envspec.verifier.compare import bytecode_finding, in_order
from envspec.verifier.hashing import source_of
from envspec.verifier.installed import Installed
from envspec.verifier.types import DriftFinding, VerifyResult

#: Without the user's settings and packages; `.pth` files do not run.
_OPTIONS: Final = ("-I", "-S", "-B", "-W", "ignore", "-X", "utf8")
#: Files per process: a new one starts in the time of compiling some ten modules.
_BATCH: Final = 500


async def with_code(result: VerifyResult, installed: Installed) -> VerifyResult:
    """Add what `--strict` finds to a result.

    Raises:
        UnfitMachine: the environment's Python does not run.
    """
    prefix = installed.environment.prefix
    pairs: list[tuple[Path, Path]] = []
    for inside in installed.bytecode:
        path = prefix / inside
        source = source_of(path)
        # Python does not import what has no source, below __pycache__.
        if source is not None and source.is_file():
            pairs.append((path, source))
    batches = [pairs[start : start + _BATCH] for start in range(0, len(pairs), _BATCH)]
    free = asyncio.Semaphore(os.cpu_count() or 1)

    async def work(batch: Sequence[tuple[Path, Path]]) -> list[str]:
        async with free:
            return await _states(prefix / "bin" / "python", batch)

    states: list[str] = []
    for found in await asyncio.gather(*map(work, batches)):
        states += found
    findings: set[DriftFinding] = set(result.findings)
    for (path, _), state in zip(pairs, states, strict=True):
        if state == "differs":
            findings.add(bytecode_finding(path, "", installed))
        elif state.startswith("error "):
            findings.add(bytecode_finding(path, state.removeprefix("error "), installed))
    number = Counter(states)
    compared = number["same"] + number["differs"]
    counts = replace(
        result.counts, bytecode_by_time=0, bytecode_by_code=compared, bytecode_other_python=number["other"]
    )
    return VerifyResult(in_order(findings), counts)


async def _states(python: Path, pairs: Sequence[tuple[Path, Path]]) -> list[str]:
    """The worker's line for each pair. Bytecode that ends Python is an error of its own."""
    states: list[str] = []
    while len(states) < len(pairs):
        rest = [(str(path), str(source)) for path, source in pairs[len(states) :]]
        command = [str(python), *_OPTIONS, bytecode_worker.__file__]
        try:
            ended = await run(command, environ={}, cwd=Path("/"), stdin=json.dumps(rest))
        except OSError as error:
            raise UnfitMachine(
                f"{python} can't be started to compile modules ({error.strerror})",
                hint="omit --strict, or check that this Python runs on this machine",
            ) from error
        states += ended.lines
        if ended.status != 0:
            states.append("error Python can't read it")
    return states
