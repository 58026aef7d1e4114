"""The first half hour on a GPU machine: `python3 bench/gpu_day.py STEP...`, or `nox -s gpu_day -- STEP...`.

    prepare     here, with a network: `.gpu/` with the wheels that envspec's command line needs there, and a lock
    suite       there, 6 minutes: the probe of the machine, and the whole suite without a lock
    receipts    there, 7 minutes: the command line with a lock: a receipt, and the same again against it as its baseline
    probes      there, 3 minutes: measurements that no check makes yet
    faults      there, 5 minutes: real faults, each with what the suite must report
    calibrate   there, 8 minutes: the largest share of each bound over several seeds

There, no network is needed and nothing is installed: any Python that has the stack will do. Reports go to --output. No
setting of a GPU is changed. A dry run without a GPU: `--device cpu`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from envspec.conformance.checks import CHECKS  # noqa: E402
from envspec.conformance.request import SEED, SuiteRequest  # noqa: E402

CARRIED: Final = ROOT / ".gpu"
RUN: Final = ROOT / "envspec/conformance/run.py"
#: Checks that measure speed, for baselines.
TIMED: Final = ("matmul", "amp", "transformer", "memory", "ddp")
#: What envspec's command line imports for `conformance` and `receipts`, besides what the standard library has.
NEEDED: Final = ("pydantic", "click", "rich", "packaging", "jinja2")
PROBE: Final = """
uname -a; id -un; nproc; free -g; df -h /tmp /dev/shm; cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/memory.max
ulimit -a; lscpu | grep -iE 'model name|numa|socket'
ldconfig -p | grep -E 'libcuda|libnvidia-ml|libnccl|libcudnn|libcudart'
env | grep -E '^(CUDA|NVIDIA|NCCL|TORCH|PYTORCH|LD_|TRITON|OMP|CUBLAS|PATH|PYTHON)' | sort; command -v gcc g++ nvcc
nvidia-smi; nvidia-smi -q; nvidia-smi topo -m
"""


@dataclass(frozen=True)
class Day:
    """python: has the stack that is tested. device: `cuda` or `cpu`. output: of all reports. checks: of `suite`."""

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
    """The whole suite without a lock."""
    probe = subprocess.run(["sh", "-c", PROBE], capture_output=True, text=True, check=False)
    torch = "import torch; print(torch.__config__.show(), torch.cuda.is_available(), torch.cuda.get_arch_list())"
    stack = subprocess.run([day.python, "-c", torch], capture_output=True, text=True, check=False)
    (day.output / "probe.txt").write_text(probe.stdout + probe.stderr + stack.stdout + stack.stderr)
    results = day.output / "suite.json"
    status, stderr = day.run_suite(day.request(*day.checks), results, limit_s=480)
    print(f"exit {status}: {stderr[-1000:]}")
    show(results)
    print("processes on the GPU:", _smi("--query-compute-apps=pid,name,used_memory"))


def receipts(day: Day) -> None:
    """A receipt for the lock in `.gpu/`, the same again with it as the baseline, and all files against the lock."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        for wheel in (CARRIED / "whl").glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
        # Nothing of envspec's own packages is on the path of the Python that is tested.
        start = "import sys; sys.path[:0] = sys.argv[1:3]; sys.argv = ['envspec', *sys.argv[3:]]\n"
        envspec = [sys.executable, "-c", f"{start}from envspec.cli.main import main; main()", str(site), str(ROOT)]
        common = [*envspec, "conformance", str(CARRIED / "lock"), "--local"]
        common += ["--python", day.python, "--device", day.device]
        environ = {**os.environ, "ENVSPEC_CACHE_DIR": str(Path(folder, "cache"))}
        timed = [word for check in TIMED for word in ("--check", check)]
        others = [word for check in ("device", "family", "fsdp", "dataloader", "pyg") for word in ("--check", check)]
        first, again, files = (day.output / name for name in ("first", "again", "files"))
        for expected, words in (
            ("0: `device` compares cuDNN, NCCL and cudart with the lock", [*others, *timed, "--report", first]),
            ("0: it reaches its own baseline", [*timed, "--baseline", first / "receipt.json", "--report", again]),
            ("0: every file is the lock's", ["--check", "lock", "--limit", "lock=200", "--report", files]),
        ):
            status, output = _ended([*common, *map(str, words)], 280, environ)
            print(f"expected exit {expected}\nexit {status}\n{output[-4000:]}\n")
        found = [str(path / "receipt.json") for path in (first, again) if (path / "receipt.json").exists()]
        print(_ended([*envspec, "receipts", *found], 60, environ)[1])


def probes(day: Day) -> None:
    """Measurements of bench/gpu_probes.py."""
    status, output = _ended([day.python, str(ROOT / "bench/gpu_probes.py"), day.device], 240, os.environ)
    (day.output / "probes.txt").write_text(output)
    print(f"exit {status}\n{output[-9000:]}")


def faults(day: Day) -> None:
    """Real faults, one at a time, each with the report that is expected."""
    uuid = _smi("--query-gpu=uuid").partition("\n")[0]
    cases: tuple[tuple[str, str, float, Mapping[str, str], tuple[str, ...]], ...] = (
        ("matmul", "failed: fp32 is TF32", 90, {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, ()),
        ("matmul", "passed: tf32 not run", 90, {"NVIDIA_TF32_OVERRIDE": "0"}, ()),
        ("device", "exit 6: no GPU", 90, {"CUDA_VISIBLE_DEVICES": ""}, ()),
        ("device", "passed: GPU named by UUID", 90, {"CUDA_VISIBLE_DEVICES": uuid}, ()),
        ("transformer", "failed: no C compiler", 120, {"PATH": "/nowhere"}, ()),
        ("dataloader", "failed: shared memory is full", 90, {}, _small_shared_memory()),
        ("ddp", "failed: over its limit, no process left on the GPU", 6, {}, ()),
    )
    for check, expected, limit_s, environ, prefix in cases:
        print(f"expected {check} {expected}")
        _report_one(day, day.request(check, limit_s=limit_s), environ, prefix)
    if day.device == "cuda":
        print("expected matmul failed: out of memory")
        with _full_gpu(day.python):
            _report_one(day, day.request("matmul", limit_s=60), {}, ())
    print("processes on the GPU:", _smi("--query-compute-apps=pid,name"))


def calibrate(day: Day) -> None:
    """The largest share of every bound over seeds, and whether one seed gives the same bits twice."""
    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    digests: list[dict[str, str]] = []
    began = time.monotonic()
    request = replace(day.request("matmul", "amp", "transformer", "memory", "pyg"), required=())
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


def prepare(_day: Day) -> None:
    """Fill `.gpu/`: wheels of what the command line needs, and a lock of the versions on the GPU machine."""
    command = ["git", "rev-parse", "--git-path", "info/exclude"]
    path = ROOT / subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    if "/.gpu/" not in (path.read_text() if path.exists() else "").splitlines():
        with path.open("a") as file:
            file.write("/.gpu/\n")
    (CARRIED / "whl").mkdir(parents=True, exist_ok=True)
    spec = CARRIED / "gpu-day.toml"
    spec.write_text(SPEC, encoding="utf-8")
    versions = CARRIED / "needed.in"
    versions.write_text("\n".join(NEEDED))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environ["PIP_CONFIG_FILE"] = os.devnull
    tags = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    target = ("--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp")
    pip = [sys.executable, "-m", "pip", "download", "-q", *target]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    subprocess.run([*pip, *platforms, "-d", str(CARRIED / "whl"), "-r", str(versions)], check=True, env=environ)
    shutil.rmtree(CARRIED / "lock", ignore_errors=True)
    lock = [sys.executable, "-m", "envspec", "lock", str(spec), "--output", str(CARRIED / "lock")]
    subprocess.run(lock, check=True, cwd=ROOT)
    print(f"{CARRIED}: {sum(each.stat().st_size for each in CARRIED.rglob('*') if each.is_file()) / 1e6:.1f} MB")


SPEC: Final = """\
[env]
name = "gpu-day"
python = "3.12"
platforms = ["linux-64"]
[cuda]
os = "ubuntu24.04"
gpus = ["H200"]
[pip]
dependencies = ["torch==2.11.0", "torchvision==0.26.0", "torchaudio==2.11.0", "torch-geometric==2.8.0.post1",
  "transformers==5.17.0", "tensorboard", "numpy==2.5.2"]
"""


def show(results: Path) -> None:
    """Print every number of a results.json with its share of the bound, what failed, and what was not run."""
    for row in _results(results):
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
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError) as error:
        print(f"{path}: {error}")
        return []
    return found


def _report_one(day: Day, request: SuiteRequest, environ: Mapping[str, str], prefix: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        status, stderr = day.run_suite(request, results, limit_s=150, environ=environ, prefix=prefix)
        print(f"  exit {status} {stderr.strip().splitlines()[-1:]}")
        for row in _results(results):
            not_run = [found["name"] for found in row["findings"] if found["kind"] == "not run"]
            print(f"  {row['check']} {row['status']} {row['cause']} {row['reason'][:260]}, not run: {not_run[:6]}")


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


STEPS: Final = {each.__name__: each for each in (prepare, suite, receipts, probes, faults, calibrate)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP")
    parser.add_argument("--python", default=sys.executable, help="the Python with the stack (default: this one)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--output", type=Path, default=Path("gpu-day"), help="folder of the reports (default: gpu-day)")
    parser.add_argument("--check", action="append", choices=CHECKS, help="of `suite`: this check only (default: all)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    day = Day(options.python, options.device, options.output.resolve(), tuple(options.check or CHECKS))
    for step in options.steps:
        print(f"\n=== {step} ({time.strftime('%H:%M:%S')})", flush=True)
        STEPS[step](day)
    return 0


if __name__ == "__main__":
    sys.exit(main())
