"""`envspec conformance` in a container that does not end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import pytest
from docker import DockerClient

from envspec.models import Platform
from tests.support.builders import receipts
from tests.support.builders.environments import make_lock, write_lock
from tests.support.machines import program
from tests.support.machines.engine import image_of_programs
from tests.support.user import User

pytestmark = pytest.mark.engine

#: In the suite's place: the arguments are run.py, the request and the results.
_SUITE: Final = """#!{sh}
cat /results.json >"$3"
echo '{{"unkillable": ["process 7 (python3) cannot be killed: state D"]}}'
exec sleep 300
"""


def test_the_receipt_does_not_wait_for_a_process_that_cannot_be_killed(engine: DockerClient, tmp_path: Path) -> None:
    user = User(tmp_path / "user", "")
    write_lock(user.folder / "lock", make_lock(where=Platform.LINUX_64))
    document = receipts.results(receipts.check("device", status="failed", cause="over its limit", reason="stuck"))
    files = {"usr/bin/python": _SUITE.format(sh=program("sh")).encode(), "results.json": json.dumps(document).encode()}
    with image_of_programs(engine, "sh", "cat", "sleep", files=files) as image:
        began = time.monotonic()
        words = ("--image", image, "--device", "cpu", "--check", "device", "--report", "receipt")
        ran = user.runs("conformance", "lock", *words)
    assert ran.status == 7, ran.stderr
    assert "process 7 (python3) cannot be killed: state D" in ran.stderr
    assert json.loads((user.folder / "receipt" / "receipt.json").read_text())["reasons"] == ["device failed"]
    assert time.monotonic() - began < 200
