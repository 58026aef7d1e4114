"""The check `lock` on real stacks: what was changed, added or put before the locked files is found."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from envspec.lockfile.folder import read_lock
from envspec.operations.verify import expected_of
from tests.support.machines import suite
from tests.support.machines.stack import copied, replace, site_packages
from tests.support.user import ROOT

pytestmark = pytest.mark.stack


def locked(name: str = "pytorch-2.9") -> dict[str, Any]:
    """The committed lock, as in the request of the suite."""
    (part,) = read_lock(ROOT / "locks" / name).resolutions
    return {
        "name": name,
        "packages": {each.name: each.version for each in part.packages},
        "expected": asdict(expected_of(part)),
        "code": [],
    }


def ran(python: Path, folder: Path, name: str = "pytorch-2.9", **environ: str) -> suite.SuiteOutput:
    return suite.run(python, suite.make_request("lock", locked=locked(name)), folder, environ=environ)


@pytest.mark.parametrize("name", ["pytorch-2.9", "pytorch-2.6"])
def test_the_locked_stack_passes_with_its_libraries(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = request.getfixturevalue("torch_29" if name == "pytorch-2.9" else "torch_26")
    output = ran(python, tmp_path, name)
    assert output.results["lock"]["status"] == "passed", output.results["lock"]["reason"]
    findings = output.findings("lock")
    assert "lists of files against the lock" not in findings, "every package is anchored"
    of_packages, cuda = (int(word) for word in findings["libraries in memory"]["detail"].split() if word.isdigit())
    assert of_packages > cuda > 5
    assert findings["files"]["value"] > 6e9


def test_a_byte_of_a_file_and_its_line_in_record_are_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    site = site_packages(python)
    path = site / "torch" / "nn" / "functional.py"
    changed = path.read_bytes().replace(b"Applies", b"applies", 1)
    replace(path, changed)
    result = ran(python, tmp_path / "one").results["lock"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert "torch/nn/functional.py was changed" in result["reason"]
    assert "envspec install" in result["hint"]

    (record,) = site.glob("torch-2.9.1*.dist-info/RECORD")
    rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"))))
    digest = base64.urlsafe_b64encode(hashlib.sha256(changed).digest()).rstrip(b"=").decode()
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(
        [row[0], f"sha256={digest}", row[2]] if row[0] == "torch/nn/functional.py" else row for row in rows
    )
    replace(record, written.getvalue().encode())
    result = ran(python, tmp_path / "two").results["lock"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    assert result["reason"].startswith("torch: ") and "list of files is not the locked wheel's" in result["reason"]


def test_a_package_added_by_hand_is_found(torch_29: Path, tmp_path: Path) -> None:
    python = copied(torch_29, tmp_path / "stack")
    site = site_packages(python)
    info = site / "byhand-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: byhand\nVersion: 1.0\n")
    (info / "RECORD").write_text("byhand-1.0.dist-info/METADATA,,\nbyhand-1.0.dist-info/RECORD,,\n")
    (site / "loose.pth").write_text("import sys\n")
    result = ran(python, tmp_path / "run").results["lock"]
    assert result["status"] == "failed"
    assert "byhand: 1.0 is installed and is not in the lock" in result["reason"]
    assert "loose.pth belongs to no package" in result["reason"]


def test_another_cudnn_before_the_locked_one_is_found(torch_29: Path, tmp_path: Path) -> None:
    """The same bytes in another folder: what is in memory is still nothing that a locked package brought.

    torch's own RPATH leads to the locked libcudnn.so.9; its parts are looked for on LD_LIBRARY_PATH first.
    """
    other = tmp_path / "other"
    other.mkdir()
    for path in (site_packages(torch_29) / "nvidia" / "cudnn" / "lib").glob("libcudnn*.so.9"):
        shutil.copyfile(path, other / path.name)
    result = ran(torch_29, tmp_path / "run", LD_LIBRARY_PATH=str(other)).results["lock"]
    assert result["status"] == "failed", "LD_LIBRARY_PATH did not come first"
    assert f"{other}/libcudnn" in result["reason"] and "belongs to no locked package" in result["reason"]
    assert "LD_LIBRARY_PATH" in result["hint"]
