"""uv's cache has this interpreter before uv resolves, and a run that ends early leaves no process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from envspec.resolve.pypi.interpreter import UV_CACHE, read_ahead

_LIMIT_S = 60.0


def interpreters(cache: Path) -> list[Path]:
    return list((cache / UV_CACHE).glob("interpreter-*/**/*.msgpack"))


def test_uv_reads_the_interpreter(tmp_path: Path) -> None:
    with read_ahead(tmp_path):
        end = time.monotonic() + _LIMIT_S
        while not interpreters(tmp_path) and time.monotonic() < end:
            time.sleep(0.01)
    [known] = interpreters(tmp_path)
    changed = known.stat().st_mtime_ns
    with read_ahead(tmp_path):
        assert known.stat().st_mtime_ns == changed


def test_an_error_meanwhile_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="refused"), read_ahead(tmp_path):
        raise ValueError("refused")
