"""Made-up runs of the suite, in the form of results.json: no machine has measured these numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from envspec.conformance.bounds import limit
from envspec.conformance.receipt import ReceiptInputs
from envspec.conformance.request import SEED, SuiteRequest
from envspec.conformance.results import FORMAT
from envspec.receipts.build import receipt
from envspec.receipts.model import Image, LocalPython, LockName, Receipt

MADE_AT: Final = datetime(2026, 11, 22, 3, 0, tzinfo=timezone.utc)
LOCK: Final = LockName(name="made-up", sha256="a1" * 32, input_sha256="b2" * 32, identity="c3" * 32)
IMAGE: Final = Image(reference="registry.example/made-up@sha256:" + "d4" * 32, id="sha256:" + "e5" * 32)
LOCAL: Final = LocalPython(python="/opt/venv/bin/python", prefix="/opt/venv")


def exact(name: str, *, ok: bool = True, detail: str = "") -> dict[str, Any]:
    """A finding that is right or wrong."""
    return {"name": name, "kind": "exact", "ok": ok, "detail": detail}


def within(name: str, value: float | None, row: str, k: int = 0) -> dict[str, Any]:
    """A number held against a row of the suite's table; None for what is no number."""
    bound = limit(row, k)
    return {
        "name": name,
        "kind": "bounded",
        "ok": value is not None and bound.holds(value),
        "value": value,
        "bound": bound.value,
        "relation": bound.relation.value,
        "formula": bound.formula,
        "source": bound.source,
        "detail": "" if value is not None else "not a number",
    }


def info(name: str, value: float, unit: str, detail: str = "", spread: float | None = 0.02) -> dict[str, Any]:
    """A number that judges nothing. spread: of a rate."""
    found = {"name": name, "kind": "info", "value": value, "unit": unit, "detail": detail}
    return {**found, "spread": spread} if unit.endswith("/s") else found


def not_run(name: str, detail: str) -> dict[str, Any]:
    """A part that was not run."""
    return {"name": name, "kind": "not run", "detail": detail}


def fingerprint(name: str, digest: str, key: str = "") -> dict[str, Any]:
    """A hash over results: universal where it has no key."""
    return {"name": name, "level": "keyed" if key else "universal", "digest": digest, "key": key}


_PHASES: Final[dict[str, Any]] = {"phases": [["import torch", 1.25], ["compute", 0.5]], "preimports": []}


def check(name: str, **more: Any) -> dict[str, Any]:
    """A check's result: passed after two seconds, unless `more` says otherwise. Its phases: (name, seconds)."""
    timed = {key: more.pop(key, default) for key, default in _PHASES.items()}
    return {
        "check": name,
        "status": "passed",
        "cause": None,
        "reason": "",
        "hint": "",
        "required": False,
        "seconds": 2.0,
        "limit_s": 120.0,
        "findings": [],
        "fingerprints": [],
        "ran": {},
        "peak": {"allocated_bytes": None, "reserved_bytes": None, "host_bytes": 500_000_000},
        "log": "",
        **more,
        **{key: [{"name": name, "seconds": seconds} for name, seconds in found] for key, found in timed.items()},
    }


def results(*checks: Mapping[str, Any], device: str = "cpu", **more: Any) -> dict[str, Any]:
    """A document of the suite."""
    return {
        "format": FORMAT,
        "began_s": 1_763_780_000.0,
        "seconds": sum(each["seconds"] for each in checks),
        "is_whole": True,
        "device": device,
        "seed": SEED,
        "machine": machine(device),
        "has_torch": True,
        "results": list(checks),
        **more,
    }


def machine(device: str, gpus: int = 8, gpu: str = "NVIDIA H100 80GB HBM3") -> dict[str, Any]:
    """A machine with two CPUs, or with GPUs that NVLinks join."""
    detail: dict[str, Any] = {
        "system": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0-18-amd64",
        "architecture": "x86_64",
        "cpu": "Made-up CPU",
        "cpus": 2,
        "memory_bytes": 16_000_000_000,
        "shm_bytes": 8_000_000_000,
        "python": "3.11.7",
        "executable": "/opt/venv/bin/python",
        "libc": "glibc 2.36",
    }
    if device == "cpu":
        return detail
    cards = [
        {"index": n, "name": gpu, "uuid": f"GPU-{n}", "compute_capability": "9.0", "memory_bytes": 85_520_809_984}
        for n in range(gpus)
    ]
    topology = {f"{one}-{other}": "NV18" for one in range(gpus) for other in range(one + 1, gpus)}
    return {**detail, "cpus": 192, "driver": "570.124.06", "gpus": cards, "topology": topology}


def known(*requested: str, **more: Any) -> ReceiptInputs:
    """What the host knows of a made-up run: it was in an image, and about its first check."""
    required, named = more.pop("required", ()), more.pop("named", requested[:1])
    request = SuiteRequest("cpu", requested, required=required, named=named)
    where = {} if "local" in more else {"image": IMAGE}
    return ReceiptInputs(**{"envspec": "0.1.0", "made_at": MADE_AT, "request": request, "lock": LOCK, **where, **more})


def made(*checks: Mapping[str, Any], device: str = "cpu", **more: Any) -> Receipt:
    """A receipt over checks. more: of what the host knows."""
    return receipt(results(*checks, device=device), known(*(each["check"] for each in checks), **more))


def eight_gpus(speed: float = 1.0) -> dict[str, Any]:
    """A run of many kinds of results on eight GPUs. speed: of this machine against another one of its kind."""
    lengths = (64, 1024, 4096, 16384)
    share = {"fp32": 0.02, "tf32": 0.2, "fp16": 0.3, "bf16": 0.31}
    bounded = [
        within(f"{mode}, K = {k}", part * limit(f"matmul.{mode}", k).value, f"matmul.{mode}", k)
        for mode, part in share.items()
        for k in lengths
    ]
    rates = [info(f"{mode}, K = 16384", rate * speed, "TFLOP/s") for mode, rate in (("fp32", 51), ("bf16", 702))]
    torch = {"torch": "2.9.1+cu128", "cuDNN": "9.10.2", "NCCL": "2.27.5"}
    peak = {"allocated_bytes": 6_400_000_000, "reserved_bytes": 7_100_000_000, "host_bytes": 2_300_000_000}
    traceback = "Traceback (most recent call last):\n  ...\nInvalidCxxCompiler: no working C++ compiler"
    checks = [
        check(
            "coldstart",
            seconds=9.5,
            phases=[["import torch", 4.1], ["the device's start", 2.2], ["the first kernel", 0.4]],
            findings=[exact("the first product"), info("in all", 9.1, "s"), info("pulled", 4.1e9, "bytes")],
            ran=torch,
        ),
        check(
            "matmul",
            seconds=4.1,
            preimports=[["import torch", 2.4]],
            phases=[["integers", 0.6], ["fp32", 1.1], ["bf16", 0.7], ["fp16", 0.7]],
            findings=[exact("integers, K = 1024"), *bounded, *rates, not_run("fp4", "compute capability 9.0 has none")],
            fingerprints=[
                fingerprint("integers", "11" * 32),
                fingerprint("fp32", "22" * 32, "sm_90 x 132, cuBLAS 12.8.4, torch 2.9.1"),
            ],
            peak=peak,
        ),
        check(
            "ddp",
            seconds=14.0,
            findings=[
                exact("ranks agree bit by bit"),
                within("gradient against one process", 1.1e-7, "distributed.gradient"),
                within("norm against one process", 3e-8, "distributed.norm"),
                info("all-reduce, 256 MB", 412.0 * speed, "GB/s"),
            ],
            peak={**peak, "allocated_bytes": 3_100_000_000, "reserved_bytes": 4_000_000_000},
        ),
        check(
            "fsdp",
            seconds=13.0,
            status="failed",
            cause="found",
            required=True,
            reason="norm: 1, must be <= 1e-05",
            findings=[
                exact("ranks agree bit by bit"),
                within("norm", 1.0, "distributed.norm"),
                within("loss", None, "amp.loss"),
            ],
            log="rank 0: norm 2.0\nrank 1: norm 2.0",
        ),
        check(
            "transformer",
            seconds=5.2,
            status="failed",
            cause="raised",
            reason="in the phase 'compile': InvalidCxxCompiler: no working C++ compiler",
            hint="put a C++ compiler into the image: [image] compiler",
            findings=[info("tokens", 810_000.0 * speed, "1/s")],
            log=traceback,
        ),
        check("pyg", seconds=0.2, status="not run", reason="torch_geometric is not in the lock", phases=[]),
    ]
    return results(*checks, device="cuda")
