"""Real extensions beside a real torch, by nvcc from wheels: needs the index, 12 GB of disk, and no GPU."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envspec import documents
from tests.support.builders.environments import BASE, SERIES
from tests.support.machines.confinement import confined
from tests.support.user import ROOT

pytestmark = [
    pytest.mark.stack,
    confined,
    pytest.mark.skipif(not shutil.which("g++", path="/usr/bin"), reason="needs g++"),
]

_SPLINE = (
    'dependencies = ["torch==2.12.*", "numpy", "torch-spline-conv==1.2.2"]\nbuild.packages = ["torch-spline-conv"]\n'
)
_FLASH = 'dependencies = ["torch==2.12.*", "flash-attn==2.8.3"]\nbuild.packages = ["flash-attn"]\n[build.flash-attn]\n'
#: One operator against its definition (linear B-splines), in plain torch.
_CHECK = """
import torch
from torch_spline_conv import spline_basis

pseudo = torch.rand(200, 1, dtype=torch.float64)
size, is_open = torch.tensor([5]), torch.tensor([1], dtype=torch.uint8)
basis, index = spline_basis(pseudo, size, is_open, 1)
at = pseudo * 4
whole = at.floor()
expected = torch.cat([1 - (at - whole), at - whole], dim=1)
assert torch.allclose(basis, expected, rtol=0, atol=1e-12), (basis - expected).abs().max()
assert torch.equal(index, torch.cat([whole, whole + 1], dim=1).long() % 5)
"""


def envspec(folder: Path, *words: str | Path) -> subprocess.Popen[str]:
    # The index of this machine, with its certificates and proxies.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "ENVSPEC_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, "-m", "envspec", *map(str, words)]
    return subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True)


def ends(process: subprocess.Popen[str]) -> str:
    _, text = process.communicate()
    assert process.returncode == 0, text
    return text


def lock(folder: Path, pip: str) -> Path:
    folder.mkdir()
    spec = folder / "spec.toml"
    spec.write_text(
        f'[env]\nname = "real"\npython = "{SERIES}"\nas_of = 2026-11-15T00:00:00Z\n'
        f'[cuda]\ngpus = ["H100"]\n[pip]\n{pip}'
    )
    ends(envspec(folder, "lock", spec))
    return folder / "locks" / "real"


def _link(source: str, target: str) -> None:
    if not Path(target).exists():
        os.link(source, target)


def wheel_of(folder: Path) -> Path:
    (found,) = (folder / "cache" / "archives").glob("*/torch_spline_conv-*.whl")
    return found


@pytest.mark.skipif(
    not os.environ.get("ENVSPEC_TEST_LONG"), reason="not run: compiles for half an hour; ENVSPEC_TEST_LONG=1 runs it"
)
def test_an_extension_is_the_same_bytes_twice_and_computes(tmp_path: Path) -> None:
    """The second time by the system's Python, if it is of the series: it has other compiler flags."""
    found: list[Path] = []
    system = Path(f"/usr/bin/python{SERIES}")
    has_headers = Path(f"/usr/include/python{SERIES}/Python.h").exists()
    for name, python in (("a", BASE), ("b", system if has_headers and system.exists() else BASE)):
        folder = tmp_path / name
        made = lock(folder, _SPLINE)
        if found:
            others = [path for path in (tmp_path / "a/cache/archives").iterdir() if path != found[0].parent]
            for path in others:
                shutil.copytree(path, folder / "cache/archives" / path.name, copy_function=_link, dirs_exist_ok=True)
        log = ends(envspec(folder, "install", made, "--prefix", folder / "env", "--python", python))
        assert "building for sm_90" in log
        found.append(wheel_of(folder))
        subprocess.run([folder / "env/bin/python", "-c", _CHECK], check=True)
        shutil.rmtree(folder / "env")
    assert found[0].parent.name == found[1].parent.name


def test_flash_attn_starts_with_its_cost_and_is_cancelled(tmp_path: Path) -> None:
    made = lock(tmp_path / "a", _FLASH)
    listed = documents.parse_toml((made / "envspec.lock").read_text())["resolution"][0]["build"]
    assert [each["gpu_code"] for each in listed] == [["sm_90"]]
    process = envspec(tmp_path / "a", "install", made, "--prefix", tmp_path / "env", "--python", BASE)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "building for sm_90: " in line:
            break
    assert "building for sm_90: " in lines[-1], "".join(lines)
    work = build_folder(process)
    limit = time.monotonic() + 600
    while not processes(work, "cicc") and time.monotonic() < limit:
        time.sleep(1)
    assert processes(work, "cicc")
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130 and "interrupted" in rest
    assert not work.exists() and not processes(work, "") and not (tmp_path / "env").exists()


def build_folder(process: subprocess.Popen[str]) -> Path:
    """The folder that the process has locked; one of the same name may be left from a killed run."""
    opened = {each.readlink() for each in Path(f"/proc/{process.pid}/fd").iterdir()}
    (found,) = [each for each in opened if each.name.startswith("envspec-build-")]
    return found


def processes(work: Path, program: str) -> list[str]:
    """The processes whose words name a build's folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue
        if str(work) in words and program in words:
            found.append(each.name)
    return found
