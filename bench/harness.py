"""What all benchmarks share: a command's cost, the machine, medians and goals, and results as JSON and Markdown.

Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from statistics import median
from typing import IO, Final

Command = Sequence[str | Path]

#: Variables that a measured command keeps: certificates and language, nothing that names an index, cache or wheel.
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
#: Often enough to see the peak of a resolver (a second or more), seldom enough not to slow it down.
_SAMPLE_S: Final = 0.02
#: More often at the start, for commands that end sooner than that.
_FIRST_SAMPLE_S: Final = 0.004
_FIRST_SAMPLES: Final = 50
# PF_FORKNOEXEC of Linux, include/linux/sched.h.
_NOT_YET_A_PROGRAM: Final = 0x40


class NotHere(Exception):
    """What a tool needs is not on this machine; the message says what."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------------ environments


def clean(environ: Mapping[str, str], *, home: Path, proxy: str | None = None) -> dict[str, str]:
    """Variables for a command whose HOME is an empty folder of its own.

    proxy: URL for all traffic but loopback's, None for a direct connection.
    """
    routed = {}
    if proxy is not None:
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        routed = dict.fromkeys(names, proxy) | dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
    return {
        **{key: environ[key] for key in (*_KEPT, "PIP_CERT") if key in environ},
        **routed,
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "PYTHONDONTWRITEBYTECODE": "",
        "NO_COLOR": "1",
    }


def default_index() -> str:
    """The default index's simple pages, as pip names them: the address is not written down here."""
    from pip._internal.models.index import PyPI

    return PyPI.simple_url.rstrip("/") + "/"


def use_realtime() -> None:
    """Run this process and all that it starts before the machine's other work (SCHED_FIFO).

    Raises:
        NotHere: it is not permitted.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError as error:
        raise NotHere("real-time priority is not permitted: run as root, or without --realtime") from error


def proxies() -> dict[str, str]:
    """This process's own proxy variables, for what is fetched before anything is measured."""
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


def uv() -> Path:
    """The uv of this environment."""
    from uv import find_uv_bin

    return Path(find_uv_bin())


def describe() -> dict[str, str]:
    """The machine: CPU, cores, memory, system, Python, and the day. No host names or paths: results are published."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "cpu": _field("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_PAGE_BYTES * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": _field("/etc/os-release", r'PRETTY_NAME="?([^"\n]+)') or platform.system(),
        "kernel": re.split(r"[-+]", platform.release())[0],
        "python": platform.python_version(),
        "load at the start": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _field(file: str, pattern: str) -> str | None:
    path = Path(file)
    found = re.search(pattern, path.read_text()) if path.exists() else None
    return found[1].strip() if found else None


@contextmanager
def module(name: str, *words: str) -> Iterator[tuple[int, int]]:
    """A server of the benchmark as a process of its own, so that its CPU time and memory are not counted as a tool's.

    `python -m NAME WORDS` prints its port and serves until its standard input closes. Yields its port and its pid.
    """
    command = [sys.executable, "-m", name, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), process.pid
        finally:
            process.stdin.close()
            process.wait(timeout=10)


# -------------------------------------------------------------------------------------------------- a command's cost


class Watch(Enum):
    """What is measured of a run: sampling memory takes time, most from programs with many threads."""

    MEMORY = "memory, too"
    TIME = "time alone"


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run cost.

    wall_s, cpu_s: seconds; CPU is user and system, of the command and of all children it waited for.
    peak_bytes: largest sum of the resident sets of the tree, sampled; pages that two processes share count twice.
    own_bytes: the same without mapped files, which the system can take back, and without forks that have not executed
    a program, which show their parent's memory.
    rest_bytes: the resident sets without such forks and without the programs that the caller left out.
    exit_code: None if the limit ended it. output: the last lines of stderr, or of stdout if stderr is empty.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    own_bytes: int
    rest_bytes: int
    exit_code: int | None
    output: str

    @property
    def is_done(self) -> bool:
        return self.exit_code == 0


def run(
    command: Command,
    *,
    cwd: Path,
    env: Mapping[str, str],
    limit_s: float,
    stdout: Path | None = None,
    watch: Watch = Watch.MEMORY,
    without: Collection[str] = (),
) -> Cost:
    """Run a command to its end or its limit, then end what it left behind of its process group.

    stdout: a file for the standard output, if that is the tool's result. without: names of programs that
    `Cost.rest_bytes` leaves out.
    """
    with tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as out:
        target = out if stdout is None else stdout.open("wb")
        started = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=err,
            start_new_session=True,
        )
        peaks = Peaks(without)
        is_ended = _watch(process.pid, started + limit_s, peaks if watch is Watch.MEMORY else None)
        if not is_ended:
            _end_group(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        _end_group(process.pid)
        if stdout is not None:
            target.close()
        output = _tail(err) or _tail(out)
    code = process.returncode if is_ended else None
    return Cost(wall_s, used.ru_utime + used.ru_stime, peaks.resident, peaks.own, peaks.rest, code, output)


class Peaks:
    """Of a process tree, in bytes; see `Cost`."""

    def __init__(self, without: Collection[str]) -> None:
        self.resident = self.own = self.rest = 0
        self._without = without

    def sample(self, pid: int) -> None:
        resident = own = rest = 0
        for process in (pid, *descendants(pid)):
            its_resident, its_own = memory_of(process)
            resident += its_resident
            own += its_own
            if its_own and self._without and _program_of(process) not in self._without:
                rest += its_resident
        self.resident, self.own, self.rest = max(self.resident, resident), max(self.own, own), max(self.rest, rest)


def _watch(pid: int, until: float, peaks: Peaks | None) -> bool:
    """Wait, taking samples of the tree, until it ends or `until` (perf_counter): whether it ended."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    samples = 0
    try:
        # Waiting comes first: before its exec the child still shows this process's own memory.
        while (left_s := until - time.perf_counter()) > 0:
            wait_s = left_s
            if peaks is not None:
                wait_s = _FIRST_SAMPLE_S if samples < _FIRST_SAMPLES else _SAMPLE_S
            if poll.poll(wait_s * 1000):
                return True
            if peaks is not None:
                peaks.sample(pid)
            samples += 1
    finally:
        os.close(ended)
    return False


def descendants(pid: int, but: Collection[int] = ()) -> list[int]:
    """Children, their children and so on; without those in `but`, and what is below them."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        try:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = [int(word) for word in (task / "children").read_text().split()]
                waiting += (new := [child for child in children if child not in but])
                found += new
        except OSError:
            continue
    return found


def memory_of(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and those that are its own; nothing for one that has ended."""
    try:
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
        flags = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6])
    except (OSError, IndexError, ValueError):
        return 0, 0
    return resident * _PAGE_BYTES, 0 if flags & _NOT_YET_A_PROGRAM else (resident - shared) * _PAGE_BYTES


def _program_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _tail(stream: IO[bytes], lines: int = 30) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 4000))
    return "\n".join(stream.read().decode(errors="replace").strip().splitlines()[-lines:])


# ------------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Sample:
    """One run. subject: what it was run on. figures: name -> number, of what was measured.

    exit_code: None for a run over its limit. output: of a run that failed.
    """

    subject: str
    tool: str
    scenario: str
    round: int
    figures: Mapping[str, float]
    exit_code: int | None = 0
    output: str = ""

    @property
    def end(self) -> str:
        return "over its limit" if self.exit_code is None else f"exit {self.exit_code}" if self.exit_code else ""


def sampled(subject: str, tool: str, scenario: str, turn: int, cost: Cost, **figures: float | None) -> Sample:
    """A sample of a command's cost. figures: further ones; None for what was not measured."""
    peak_bytes = cost.peak_bytes or None
    found = {"wall_s": round(cost.wall_s, 4), "cpu_s": round(cost.cpu_s, 4), "peak_bytes": peak_bytes, **figures}
    known = {name: value for name, value in found.items() if value is not None}
    return Sample(subject, tool, scenario, turn, known, cost.exit_code, "" if cost.is_done else published(cost.output))


@dataclass(frozen=True, slots=True)
class Absence:
    """A run that was not made, and why: no tool is left out in silence. scenario: `all` for all of them."""

    subject: str
    tool: str
    scenario: str
    why: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on what was measured: an upper one, or with `at_least` a lower one."""

    what: str
    subject: str
    measured: float
    bound: float
    unit: str
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


@dataclass(slots=True)
class Results:
    """What a benchmark found. facts: further values for the JSON file."""

    title: str
    options: Mapping[str, object]
    machine: Mapping[str, str] = field(default_factory=describe)
    tools: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    absences: list[Absence] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)

    def note(self, sample: Sample) -> None:
        """Keep a sample and print it."""
        self.samples.append(sample)
        figures = " ".join(f"{_shown(name, value):>14}" for name, value in sample.figures.items())
        say(f"{sample.subject:12} {sample.tool:26} {sample.scenario:18} {figures} {sample.end}")

    def mid(self, subject: str, tool: str, scenario: str, what: str = "wall_s") -> float | None:
        """The median of a figure over the runs that succeeded; None if there is none."""
        wanted = (subject, tool, scenario, 0)
        found = [s.figures.get(what) for s in self.samples if (s.subject, s.tool, s.scenario, s.exit_code) == wanted]
        known = [value for value in found if value is not None]
        return median(known) if known else None

    def ratio(self, subject: str, tool: str, reference: str, scenario: str, what: str = "wall_s") -> float | None:
        """The median of the ratios within the rounds: what slows a machine down slows both runs of a pair."""
        own, other = (self._by_round(subject, name, scenario, what) for name in (tool, reference))
        ratios = [value / other[turn] for turn, value in own.items() if other.get(turn)]
        return median(ratios) if ratios else None

    def _by_round(self, subject: str, tool: str, scenario: str, what: str) -> dict[int, float]:
        wanted = (subject, tool, scenario, 0)
        found = {}
        for sample in self.samples:
            if (sample.subject, sample.tool, sample.scenario, sample.exit_code) == wanted and what in sample.figures:
                found[sample.round] = sample.figures[what]
        return found

    def tools_of(self, subject: str) -> list[str]:
        return list(dict.fromkeys(sample.tool for sample in self.samples if sample.subject == subject))

    def document(self) -> dict[str, object]:
        """For JSON: everything, goals with their verdict."""
        return {**asdict(self), "goals": [{**asdict(goal), "met": goal.is_met} for goal in self.goals]}

    def page(self, sections: Mapping[str, Sequence[str]], how: Sequence[str]) -> str:
        """A page to read: goals, then these sections, then what failed or did not run, then how it was measured."""
        parts = [f"# {self.title}", "", " · ".join(f"{key}: {value}" for key, value in self.machine.items()), ""]
        parts += ["Tools: " + " · ".join(f"{tool} {version}" for tool, version in self.tools.items()), ""]
        parts += ["## Goals", "", *self._goals(), ""]
        for heading, lines in sections.items():
            parts += [f"## {heading}", "", *lines, ""]
        parts += ["## What failed or did not run", "", *self._failures(), "", "## How", "", *how, ""]
        parts += ["Options: " + ", ".join(f"{key} {value}" for key, value in self.options.items()) + ".", ""]
        parts += [f"- {tool}: {note}" for tool, note in self.notes.items() if note]
        return "\n".join(parts).rstrip() + "\n"

    def write(self, folder: Path, stem: str, text: str) -> int:
        """Write `STEM.json` and `STEM.md`, and print the page; 1 if a goal is missed, else 0."""
        folder.mkdir(parents=True, exist_ok=True)
        # Not by with_suffix: a label such as cpu-2.9 would lose its end.
        (folder / f"{stem}.json").write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        (folder / f"{stem}.md").write_text(text, encoding="utf-8")
        print(text)
        return 0 if all(goal.is_met for goal in self.goals) else 1

    def _goals(self) -> list[str]:
        if not self.goals:
            return ["None could be measured."]
        found: dict[tuple[str, str], list[Goal]] = {}
        for goal in self.goals:
            bound = f"{'>=' if goal.at_least else '<='} {goal.bound:g} {goal.unit}"
            found.setdefault((goal.what, bound), []).append(goal)
        rows = []
        for (what, bound), goals in found.items():
            measured = ", ".join(f"{goal.subject} {goal.measured:.3g}" for goal in goals)
            missed = [goal.subject for goal in goals if not goal.is_met]
            rows.append([what, bound, measured, f"MISSED: {', '.join(missed)}" if missed else "met"])
        return table(["goal", "bound", "measured", "verdict"], rows)

    def _failures(self) -> list[str]:
        lines = [
            f"- {gone.subject}, {gone.tool}, {gone.scenario}: not run: {_line(gone.why)}" for gone in self.absences
        ]
        for sample in self.samples:
            if sample.exit_code != 0:
                what = _line(sample.output) or "no message"
                lines.append(f"- {sample.subject}, {sample.tool}, {sample.scenario}: {sample.end}: {what}")
        return list(dict.fromkeys(lines)) or ["Nothing."]


def shown(value: float | None, form: str = ".2f", scale: float = 1.0) -> str:
    """A figure in a table; `-` for what was not measured."""
    return "-" if value is None else format(value * scale, form)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def published(text: str, limit: int = 600) -> str:
    """A tool's message without addresses, host names and paths of this machine."""
    text = re.sub(r"https?://[^\s'\",)]+", "<url>", text)
    text = re.sub(r"\b(?:[a-z0-9-]+\.)+(?:org|com|net|io|dev)\b", "<host>", text)
    text = re.sub(r"(?<![\w<])/(?:[\w.+@-]+/)+[\w.+@-]*", "<path>", text)
    return text[-limit:].strip()


def names_of(known: Collection[str], separator: str = ",") -> Callable[[str], list[str]]:
    """An option's type: some of these names."""

    def read(text: str) -> list[str]:
        wanted = [name.strip() for name in text.split(separator) if name.strip()]
        if strange := [name for name in wanted if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(strange)}: not one of {f'{separator} '.join(known)}")
        return wanted

    return read


def parser_of(name: str, doc: str | None, folder: str, keeps: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has. keeps: what is in its folder."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=(doc or "").split("\n")[0])
    home = Path(tempfile.gettempdir()) / f"{folder}-{os.getuid()}"
    parser.add_argument("--home", type=Path, default=home, help=f"folder of {keeps} (a temporary one, kept)")
    parser.add_argument("--output", type=Path, default="bench/results", help="folder for the JSON and Markdown files")
    parser.add_argument("--label", default=describe()["date"], help="in the files' names, instead of the date")
    return parser


def _shown(name: str, value: float) -> str:
    what, _, unit = name.rpartition("_")
    return f"{what} {value / 1e6:.1f} MB" if unit == "bytes" else f"{what} {value:.2f} {unit}"


def _line(text: str) -> str:
    return " ".join(text.split())
