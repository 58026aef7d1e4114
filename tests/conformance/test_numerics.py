"""Times and refusals of the checks, without torch."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from envspec.conformance.events import CheckContext, ProcessEvents
from envspec.conformance.numerics import case, compile_failure, spread, worst
from envspec.conformance.request import SuiteRequest
from envspec.conformance.results import Kind


@pytest.mark.parametrize(
    ("seconds", "disturbed", "expected"),
    [
        ([2.0], 0.0, 0.0),
        ([2.2, 2.0, 9.0], 0.0, 0.1),
        ([2.0, 2.0, 2.0], 0.25, 0.25),
        ([2.0, 2.0, 2.0], 7.0, 1.0),
    ],
)
def test_the_spread_of_times(seconds: list[float], disturbed: float, expected: float) -> None:
    assert spread(seconds, disturbed) == pytest.approx(expected)


@pytest.mark.parametrize("errors", [[math.nan, 1.0], [1.0, math.nan, 2.0], [1.0, 2.0, math.nan]])
def test_an_error_that_is_not_a_number_is_the_worst(errors: list[float]) -> None:
    assert math.isnan(worst(errors))
    assert worst([1.0, 3.0, 2.0]) == 3.0


_BUSY = """
import os, time
os.sched_setaffinity(0, [{core}])
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    pass
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel counts no waiting")
@pytest.mark.parametrize(("device", "core"), [("cuda", 0), ("cpu", 0), ("cpu", -1)])
def test_programs_beside_it_disturb(device: str, core: int) -> None:
    """On the same core, for which both wait, and on another one, which counts if the work is the CPU's."""
    cores = sorted(os.sched_getaffinity(0))
    script = f"from envspec.conformance.numerics import disturbance\nfound = disturbance({device!r})\n"
    script += _BUSY.format(core=cores[0], seconds=0.5) + "print(found())"
    other = subprocess.Popen([sys.executable, "-c", _BUSY.format(core=cores[core], seconds=30)])
    try:
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    finally:
        other.kill()
        other.wait()
    assert float(done.stdout) > 0.1 / len(cores)


class _OutOfMemory(RuntimeError):
    """As torch's."""


_TORCH = SimpleNamespace(OutOfMemoryError=_OutOfMemory, cuda=SimpleNamespace(OutOfMemoryError=_OutOfMemory))


def _events(error: BaseException, folder: Path) -> ProcessEvents:
    path = folder / "events"
    with path.open("w", encoding="utf-8") as lines:
        context = CheckContext(SuiteRequest("cpu", ("matmul",)), folder, lines)
        with case(_TORCH, context, "fp8's speed"):
            raise error
    return ProcessEvents.read(path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmul( ltHandle )`\nmore", Kind.EXACT),
        ("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED\nmore", Kind.EXACT),
        ("cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph.", Kind.EXACT),
        ("Only multiplication of row-major and column-major matrices is supported by cuBLASLt", Kind.EXACT),
        (
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+",
            Kind.NOT_RUN,
        ),
        ("sparse_mm: CUDA BFloat16 requires compute capability >= 80 (current: 75)", Kind.NOT_RUN),
    ],
)
def test_a_refusal_is_a_finding_with_its_first_line(tmp_path: Path, text: str, kind: Kind) -> None:
    (found,) = _events(RuntimeError(text), tmp_path).findings
    assert (found.name, found.kind, found.ok) == ("fp8's speed", kind, False if kind is Kind.EXACT else None)
    assert found.detail == f"RuntimeError: {text.splitlines()[0]}"


@pytest.mark.parametrize(
    "error",
    [
        _OutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle )`"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ValueError("not a kernel's"),
    ],
)
def test_errors_that_are_no_refusal_are_raised(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)):
        _events(error, tmp_path)


class _InductorError(RuntimeError):
    """As torch 2.11's: the compiler's error is in a field, and is no cause."""

    def __init__(self, inner_exception: Exception) -> None:
        super().__init__(f"{type(inner_exception).__name__}: {inner_exception}")
        self.inner_exception = inner_exception


def _because(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


_TRITON = [
    "/usr/bin/gcc",
    "/tmp/scratch/cuda_utils.c",
    "-O3",
    "-shared",
    "-fPIC",
    "-o",
    "/tmp/scratch/cuda_utils.so",
]
_FAILED = "the compiler /usr/bin/gcc failed with exit status 1"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (_InductorError(subprocess.CalledProcessError(1, _TRITON)), _FAILED),
        (subprocess.CalledProcessError(1, " ".join(_TRITON)), _FAILED),
        (
            _InductorError(_because(RuntimeError("C++ compile error"), subprocess.CalledProcessError(1, _TRITON))),
            _FAILED,
        ),
        (
            subprocess.CalledProcessError(1, _TRITON, b"a note\ngcc: fatal error: cannot execute 'as'\nstopped.\n"),
            f"{_FAILED}: gcc: fatal error: cannot execute 'as'",
        ),
        (subprocess.CalledProcessError(1, _TRITON, stderr="\nKilled\n"), f"{_FAILED}: Killed"),
    ],
)
def test_a_compiler_that_fails_is_one_line(error: Exception, reason: str) -> None:
    found, hint = compile_failure(error)
    assert found == reason and hint.startswith("run that compiler")


def test_a_missing_compiler_is_named_as_such() -> None:
    triton = RuntimeError("Failed to find C compiler. Please specify via CC environment variable")
    reason, hint = compile_failure(_InductorError(triton))
    assert reason.startswith("there is no C compiler, which torch.compile needs") and "[image] compiler" in hint
