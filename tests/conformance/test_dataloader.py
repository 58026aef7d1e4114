"""Loaders that lose or mix up samples, workers that die, and too little shared memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import suite
from tests.support.machines.stack import spoiled

pytestmark = pytest.mark.stack


def test_every_way_of_loading_gives_the_same(torch_any: Path, tmp_path: Path) -> None:
    output = suite.run(torch_any, suite.make_request("dataloader"), tmp_path)
    result = output.results["dataloader"]
    assert result["status"] == "passed", result
    findings = output.findings("dataloader")
    exact = {name for name, each in findings.items() if each["kind"] == "exact"}
    assert exact == {
        "no worker, epoch 1",
        "2 workers, epoch 1",
        "4 workers, prefetch 4, epoch 1",
        "2 persistent workers, epoch 1",
        "2 persistent workers, epoch 2",
        "shared memory, free",
        "shared memory, used",
    }
    left_out = {name for name, each in findings.items() if each["kind"] == "not run"}
    assert left_out == {"2 workers, pinned", "4 persistent workers, prefetch 4, pinned", "GPU busy while training"}
    assert findings["the loader's pace"]["value"] > 0


def test_the_pictures_are_the_same_with_every_torch(torch_26: Path, torch_29: Path, tmp_path: Path) -> None:
    prints = set()
    for python in (torch_26, torch_29):
        output = suite.run(python, suite.make_request("dataloader"), tmp_path / python.parts[-3])
        (fingerprint,) = output.results["dataloader"]["fingerprints"]
        assert fingerprint["level"] == "universal"
        prints.add(fingerprint["digest"])
    assert len(prints) == 1


def _spoiled(python: Path, folder: Path, module: str, body: str) -> Mapping[str, Any]:
    output = suite.run(
        python, suite.make_request("dataloader"), folder / "run", environ=spoiled(folder / "bad", body, module)
    )
    assert output.results["dataloader"]["status"] == "failed"
    return output.results["dataloader"]


def test_a_loader_that_drops_a_sample_is_found(torch_29: Path, tmp_path: Path) -> None:
    body = """
        batches = sampler.BatchSampler.__iter__
        def dropped(self):
            for batch in batches(self):
                yield [index for index in batch if index != 70]
        sampler.BatchSampler.__iter__ = dropped
    """
    result = _spoiled(torch_29, tmp_path, "torch.utils.data.sampler", body)
    assert result["cause"] == "found"
    assert "2 workers, epoch 1: 767 samples, must be 768; missing: 70" in result["reason"]


def test_a_loader_that_mixes_up_its_workers_order_is_found(torch_29: Path, tmp_path: Path) -> None:
    body = """
        fetched = fetch._MapDatasetFetcher.fetch
        fetch._MapDatasetFetcher.fetch = lambda self, indices: fetched(self, indices[::-1])
    """
    result = _spoiled(torch_29, tmp_path, "torch.utils.data._utils.fetch", body)
    assert result["cause"] == "found" and "sample 0 is (index, sum) (31, " in result["reason"]


def test_a_sample_with_one_wrong_byte_is_found(torch_29: Path, tmp_path: Path) -> None:
    body = """
        stacked = collate.collate_tensor_fn
        def spoilt(batch, **more):
            found = stacked(batch, **more)
            if found.dim() == 4 and found.dtype.itemsize == 1:
                found[3, 1, 2, 3] ^= 1
            return found
        import torch
        collate.default_collate_fn_map[torch.Tensor] = spoilt
    """
    result = _spoiled(torch_29, tmp_path, "torch.utils.data._utils.collate", body)
    assert result["cause"] == "found" and "sample 3 is (index, sum) (3, " in result["reason"]


@pytest.mark.parametrize(
    ("end", "words"), [("os._exit(1)", "exited unexpectedly"), ("os.kill(os.getpid(), 9)", "Killed")]
)
def test_a_worker_that_dies_is_reported(torch_any: Path, tmp_path: Path, end: str, words: str) -> None:
    body = f"""
        import os
        parent = os.getpid()
        fetched = fetch._MapDatasetFetcher.fetch
        def dies(self, indices):
            if os.getpid() != parent and 100 in indices:
                {end}
            return fetched(self, indices)
        fetch._MapDatasetFetcher.fetch = dies
    """
    result = _spoiled(torch_any, tmp_path, "torch.utils.data._utils.fetch", body)
    assert result["cause"] == "found"
    assert "2 workers: DataLoader worker" in result["reason"] and words in result["reason"]


def _can_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return bool(shutil.which("unshare")) and not subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.skipif(os.getuid() != 0 or not _can_mount(), reason="mounting a /dev/shm of its own needs root")
def test_64_mb_of_shared_memory_are_too_few_for_many_workers(torch_any: Path, tmp_path: Path) -> None:
    """The default of containers."""
    script = 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"'
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    output = suite.run(torch_any, suite.make_request("dataloader"), tmp_path, before=before)
    result = output.results["dataloader"]
    assert (result["status"], result["cause"]) == ("failed", "found")
    findings = output.findings("dataloader")
    free, used = findings["shared memory, free"], findings["shared memory, used"]
    assert free["ok"] is False and "308 MB; 67 MB are free in /dev/shm" in free["detail"]
    assert used["ok"] is False and "out of shared memory: " in used["detail"]
    assert "--shm-size" in result["hint"]
    # Small batches have room in it.
    assert findings["4 workers, prefetch 4, epoch 1"]["ok"] is True
