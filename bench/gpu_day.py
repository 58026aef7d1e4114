"""The first half hour on a GPU machine: `python3 bench/gpu_day.py [STEP...]`, or `nox -s gpu_day -- [STEP...]`.

    suite       8 minutes at most: the probe of the machine, and the whole suite: a receipt
    baseline    6 minutes: the checks that measure speed, twice
    faults      6 minutes: real faults, each with what the suite must report
    calibrate   8 minutes: the largest share of each bound over several seeds
    burn        2 minutes: a minute of verified products, all types in turn
    report      at home, with envspec: the second receipt of `baseline` against the first

Without a STEP all of them but the last, in under 30 minutes. A checkout and any Python with the stack are all it needs:
no network, nothing installed. Reports go to --output. No setting of a GPU is changed. A dry run without a GPU:
`--device cpu`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envspec.conformance.checks import CHECKS  # noqa: E402
from envspec.conformance.request import SEED, SuiteRequest  # noqa: E402

RUN: Final = ROOT / "envspec/conformance/run.py"
#: Checks that measure speed, for baselines.
TIMED: Final = ("matmul", "amp", "transformer", "inference", "bandwidth", "memory", "ddp")
BASELINES: Final = ("first", "again")
#: Runs the suite's own command line from this checkout: the arguments are its folder and the options.
SUITE: Final = """
import sys
sys.path.insert(0, sys.argv[1])
from envspec.conformance.main import main
from envspec.version import VERSION
sys.exit(main(sys.argv[2:], VERSION, "suite"))
"""
#: Without any compiler that Triton or torch finds: on PATH, or by a variable.
_NO_COMPILER: Final = ("/usr/bin/env", "-u", "CC", "-u", "CXX", "-u", "CUDAHOSTCXX", "PATH=/nowhere")
_BURN_S: Final = 60.0
_CLOCKS: Final = (
    "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active,pcie.link.gen.current,"
    "pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max,ecc.errors.uncorrected.volatile.total"
)
PROBE: Final = """
uname -a; id -un; nproc; free -g; df -h /tmp /dev/shm; cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory.max
ulimit -a; lscpu | grep -iE 'model name|numa|socket'
ldconfig -p | grep -E 'libcuda|libnvidia-ml|libnccl|libcudnn|libcudart'
env | grep -E '^(CUDA|NVIDIA|NCCL|TORCH|PYTORCH|LD_|TRITON|OMP|CUBLAS|PATH|PYTHON)' | sort; command -v gcc g++ nvcc
nvidia-smi; nvidia-smi -q; nvidia-smi topo -m
"""


@dataclass(frozen=True)
class Day:
    """What all steps share.

    python: has the stack that is tested.
    device: `cuda` or `cpu`.
    output: folder of all reports.
    checks: the only ones of `suite`, which then must run, and of `faults`; empty for all.
    """

    python: str
    device: str
    output: Path
    checks: tuple[str, ...]

    def run_suite(
        self,
        request: SuiteRequest,
        results: Path,
        *,
        limit_s: float,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> tuple[int, str]:
        """The suite's exit status and stderr. Its results are whole after every check, also when the time is up."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "request.json")
            path.write_text(json.dumps(asdict(request)), encoding="utf-8")
            command = [*prefix, self.python, str(RUN), str(path), str(results)]
            return _ended(command, limit_s, {**os.environ, **(environ or {})})

    def request(self, *checks: str, seed: int = SEED, limit_s: float = 240.0) -> SuiteRequest:
        return SuiteRequest(self.device, checks, limits=dict.fromkeys(checks, limit_s), seed=seed)


def suite(day: Day) -> None:
    """The whole suite: a receipt."""
    probe = subprocess.run(["sh", "-c", PROBE], capture_output=True, text=True, check=False)
    torch = "import torch; print(torch.__config__.show(), torch.cuda.is_available(), torch.cuda.get_arch_list())"
    stack = subprocess.run([day.python, "-c", torch], capture_output=True, text=True, check=False)
    (day.output / "probe.txt").write_text(probe.stdout + probe.stderr + stack.stdout + stack.stderr)
    _receipt(day, "suite", day.checks, 420)
    show(day.output / "suite" / "receipt.json")
    print("processes on the GPU:", _smi("--query-compute-apps=pid,name,used_memory"))


def baseline(day: Day) -> None:
    """The checks that measure speed, twice: `report` compares the second receipt with the first."""
    for name in BASELINES:
        _receipt(day, name, TIMED, 180)


def _receipt(day: Day, name: str, checks: Sequence[str], limit_s: float) -> None:
    words = [word for check in checks for word in ("--check", check)]
    command = [day.python, "-c", SUITE, str(ROOT), "--device", day.device, "--report", str(day.output / name), *words]
    status, output = _ended(command, limit_s, os.environ)
    (day.output / f"{name}.log").write_text(output)
    print(f"exit {status}\n{output[-6000:]}", flush=True)


def report(day: Day) -> None:
    """The second receipt of `baseline` against the first, by envspec: a healthy machine reaches its own speeds."""
    from envspec.receipts.compare import against
    from envspec.receipts.model import read

    recorded, now = (read(day.output / name) for name in BASELINES)
    compared = against(now, recorded)
    print(compared.not_compared or f"{sum(each.is_worse for each in compared.rows)} of {len(compared.rows)} are worse")
    for each in sorted(compared.rows, key=lambda row: row.change):
        print(f"{100 * each.change:7.1f} %  tolerance {100 * each.tolerance:5.1f} %  {each.check}: {each.name}")


def burn(day: Day) -> None:
    """A minute of verified products, all types in turn, and the clocks at its end."""
    request = replace(day.request("sustained"), burn_s=_BURN_S)
    day.run_suite(request, day.output / "burn.json", limit_s=_BURN_S + 60)
    show(day.output / "burn.json")
    print("clocks at the end:", _smi(f"--query-gpu={_CLOCKS}"))


def faults(day: Day) -> None:
    """Real faults, one at a time, each with the report that is expected."""
    uuid = _smi("--query-gpu=uuid").partition("\n")[0]
    cases: tuple[tuple[str, str, float, Mapping[str, str], tuple[str, ...]], ...] = (
        ("matmul", "failed: fp32 is TF32", 90, {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, ()),
        ("matmul", "passed: tf32 not run", 90, {"NVIDIA_TF32_OVERRIDE": "0"}, ()),
        ("device", "failed: CUDA shows no GPU", 90, {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ("device", "passed: GPU named by UUID", 90, {"CUDA_VISIBLE_DEVICES": uuid}, ()),
        ("transformer", "failed: no C compiler", 120, {}, _NO_COMPILER),
        ("dataloader", "failed: shared memory is full", 90, {}, _small_shared_memory()),
        ("ddp", "not known: ran out of time, no process left on the GPU", 6, {}, ()),
    )
    different = []
    chosen = day.checks or tuple(CHECKS)
    for check, expected, limit_s, environ, prefix in cases:
        if check not in chosen:
            continue
        print(f"expected {check} {expected}")
        if environ and day.device == "cpu":
            print("  not run: no GPU is requested")
        elif not _report_one(day, day.request(check, limit_s=limit_s), expected, environ, prefix):
            different.append(f"{check} {expected}")
    if day.device == "cuda" and "matmul" in chosen:
        expected = "failed: out of memory"
        print(f"expected matmul {expected}")
        with _full_gpu(day.python):
            if not _report_one(day, day.request("matmul", limit_s=60), expected, {}, ()):
                different.append(f"matmul {expected}")
    print("processes on the GPU:", _smi("--query-compute-apps=pid,name"))
    print(f"other than expected: {'; '.join(different) or 'none'}")


def calibrate(day: Day) -> None:
    """The largest share of every bound over seeds, and whether one seed gives the same bits twice."""
    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    digests: list[dict[str, str]] = []
    began = time.monotonic()
    request = replace(day.request("matmul", "amp", "transformer", "inference", "memory", "pyg"), required=())
    for number, seed in enumerate((SEED, SEED, 1, 2, 3)):
        path = day.output / f"calibrate-{number}.json"
        day.run_suite(replace(request, seed=seed), path, limit_s=170)
        for row in _results(path):
            for found in row["findings"]:
                value, bound = found["value"], found["bound"]
                if found["kind"] == "bounded" and value is not None and bound:
                    share = value / bound if found["relation"] == "<=" else bound / max(value, 1e-9)
                    key = (row["check"], found["name"])
                    worst[key] = max(worst.get(key, (0.0, 0.0, 0.0)), (share, value, bound))
        digests.append(
            {f"{r['check']} {f['name']} {f['level']}": f["digest"] for r in _results(path) for f in r["fingerprints"]}
        )
        if time.monotonic() - began > 480:
            break
    lines = [
        f"{share:7.3f}  {check}: {name}  {value:.4g} / {bound:.4g}"
        for (check, name), (share, value, bound) in sorted(worst.items(), key=lambda item: -item[1][0])
    ]
    if len(digests) > 1:
        different = sorted(name for name in digests[0] if digests[0][name] != digests[1].get(name))
        lines.append(f"one seed twice, different bits: {', '.join(different) or 'none'}")
    (day.output / "calibrated.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def show(results: Path) -> None:
    """Print every number of a results.json with its share of the bound, what failed, and what was not run."""
    for row in _results(results):
        if "seconds" not in row:
            print(f"{row['status']:8} {row['check']:12} {row['reason'][:300]}")
            continue
        print(f"{row['status']:8} {row['check']:12} {row['seconds']:6.1f} s  {row['reason'][:300]}")
        for phase in [*row["preimports"], *row["phases"]]:
            print(f"           {phase['seconds']:7.2f} s  {phase['name']}")
        for found in row["findings"]:
            value, bound = found["value"], found["bound"]
            if found["kind"] == "bounded":
                share = f"{value / bound:.3f}" if value is not None and bound else "-"
                verdict = "ok " if found["ok"] else "BAD"
                print(f"    {verdict} {found['name']}: {value} {found['relation']} {bound}, share {share}")
            elif found["kind"] == "not run" or found["ok"] is False or value is not None:
                print(f"    {found['kind']}: {found['name']} {value if value is not None else ''} {found['unit']}")
        if row["status"] == "failed":
            print("    log:", row["log"][-1500:])


def _results(path: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        found: list[dict[str, Any]] = document.get("results") or document["checks"]
    except (OSError, ValueError) as error:
        print(f"{path}: {error}")
        return []
    return found


def _report_one(
    day: Day, request: SuiteRequest, expected: str, environ: Mapping[str, str], prefix: Sequence[str]
) -> bool:
    """Whether the status of the check is the expected one."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        status, stderr = day.run_suite(request, results, limit_s=150, environ=environ, prefix=prefix)
        print(f"  exit {status} {stderr.strip().splitlines()[-1:]}")
        rows = _results(results)
        for row in rows:
            not_run = [found["name"] for found in row["findings"] if found["kind"] == "not run"]
            print(f"  {row['check']} {row['status']} {row['cause']} {row['reason'][:260]}, not run: {not_run[:6]}")
        return [row["status"] for row in rows] == [expected.partition(":")[0]]


def _ended(command: Sequence[str], limit_s: float, environ: Mapping[str, str]) -> tuple[int, str]:
    """Exit status, and stdout with stderr; SIGTERM at the limit, 20 s later SIGKILL."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ, cwd=ROOT)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        status = process.wait()
        output.seek(0)
        return status, output.read()


def _small_shared_memory() -> tuple[str, ...]:
    """A prefix that gives a command 64 MB of /dev/shm, a container's default; empty if mounts are not allowed."""
    prefix = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m none /dev/shm && exec "$@"', "sh")
    with contextlib.suppress(OSError):
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    print("no mounts here: /dev/shm keeps its size")
    return ()


@contextlib.contextmanager
def _full_gpu(python: str) -> Iterator[None]:
    """A GPU of which another process holds all but 600 MB."""
    code = (
        "import torch, time; free, _ = torch.cuda.mem_get_info();"
        "held = torch.empty(int(free - 600e6), dtype=torch.uint8, device='cuda');"
        "print('full', flush=True); time.sleep(100)"
    )
    process = subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def _smi(*words: str) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["nvidia-smi", *words, "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        return (done.stdout or done.stderr).strip()
    return "no nvidia-smi"


STEPS: Final = {each.__name__: each for each in (suite, baseline, faults, calibrate, burn, report)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)} (default: all but the last)")
    parser.add_argument("--python", default=sys.executable, help="the Python with the stack (default: this one)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("gpu-day"), help="folder of the reports (default: gpu-day)")
    parser.add_argument(
        "--check",
        action="append",
        choices=CHECKS,
        help="of `suite`: run only this check, and it must run; of `faults`: only its faults (default: all)",
    )
    options = parser.parse_args(arguments)
    steps = options.steps or [each for each in STEPS if each != "report"]
    if unknown := [each for each in steps if each not in STEPS]:
        parser.error(f"there is no step {unknown[0]}: use {', '.join(STEPS)}")
    options.output.mkdir(parents=True, exist_ok=True)
    day = Day(options.python, options.device, options.output.resolve(), tuple(options.check or ()))
    for step in steps:
        print(f"\n=== {step} ({time.strftime('%H:%M:%S')})", flush=True)
        STEPS[step](day)
    return 0


if __name__ == "__main__":
    sys.exit(main())
