"""The suite on the nodes of a Slurm cluster: a batch job for each node, then one of the nodes that passed together.

options -> `script` and `submission`, which are pure -> `run`: submits them, waits, reads receipts from a shared folder

Sources: manual pages of sbatch, srun, squeue, sinfo and scancel, Slurm 22.05 and 24.11. Read 2026-11. The tests run
22.05 on loopback.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from envspec.conformance.request import SuiteRequest
from envspec.context import counted
from envspec.errors import UnfitMachine, UsageError
from envspec.escaping import one_line
from envspec.fleet.results import (
    TOGETHER,
    ClusterError,
    NodeState,
    check_count,
    joined,
    last_line,
    prepare,
    request_document,
    write,
    write_nodes,
)
from envspec.io.files import read_untrusted, write_file
from envspec.receipts.model import RECEIPT_FILE, BadReceipt, LockName, Receipt, Verdict, read

#: Checks whose ranks can be on several nodes.
_DISTRIBUTED: Final = ("ddp", "fsdp")
#: In the folder of the run: what the nodes read.
_SHARED: Final = ".envspec"
_LOG: Final = "log.txt"
_LOG_BYTES: Final = 1 << 20
#: Of one of Slurm's commands; slurmctld may be busy.
_COMMAND_S: Final = 60.0
#: For this long slurmctld may be away, and a shared folder may show a file of another node late.
_AWAY_S: Final = 300.0
_LATE_S: Final = 15.0
#: Looks at the jobs before it is reported what they wait for.
_QUIET_LOOKS: Final = 3
#: Of a job that has ended. Source: squeue(1), "JOB STATE CODES".
_ENDED: Final = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
)
#: A job that waits for one of these will not start. Source: squeue(1), "JOB REASON CODES".
_NEVER_STARTS: Final = (
    "ReqNodeNotAvail",
    "Nodes_required_for_job_are_DOWN",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionDown",
    "BadConstraints",
    "InvalidAccount",
    "InvalidQOS",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "AssocMaxWallDurationPerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "launch_failed_requeued_held",
)
#: Parts of the state of a node that takes no jobs. Source: sinfo(1), "NODE STATE CODES".
_UNAVAILABLE: Final = ("down", "drain", "fail", "maint", "reboot", "power", "unk", "inval", "future", "block")
#: Behind a state: a node that does not respond.
_NO_ANSWER: Final = "*"


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What to run where.

    python: the command that starts the Python of the stack on a node. suite: the bytes of the suite's file. request:
    what it runs. lock: for the receipts. nodes: how many; None for all. nodelist: those, as Slurm writes it. partition:
    None for the default one. options: of sbatch, for all jobs. minutes: limit of a job. limit_s: seconds up to the last
    receipt of the nodes' own jobs, and again of the job of all nodes, waiting included; poll_s: between two looks at
    the jobs. run_id: part of the jobs' name.
    """

    python: tuple[str, ...]
    suite: bytes = field(repr=False)
    request: SuiteRequest
    lock: LockName | None
    nodes: int | None = None
    nodelist: str | None = None
    partition: str | None = None
    options: tuple[str, ...] = ()
    minutes: int = 60
    limit_s: float = 7200.0
    poll_s: float = 3.0
    run_id: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def name(self) -> str:
        """Of all jobs of the run."""
        return f"envspec-{self.run_id}"

    @property
    def is_together(self) -> bool:
        """Whether a check is to run on several nodes at once."""
        return any(name in self.request.checks for name in _DISTRIBUTED)


#: Runs one of Slurm's commands, and returns its output. Raises ClusterError if it fails.
Commands = Callable[[Sequence[str]], str]


def commands(environ: Mapping[str, str]) -> Commands:
    """Slurm's commands in an environment.

    Raises ClusterError; UsageError if this machine has no such command.
    """

    def run_one(words: Sequence[str]) -> str:
        try:
            done = subprocess.run(  # noqa: S603 (a command of Slurm)
                words,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_COMMAND_S,
                check=False,
                # Ctrl-C is for envspec, which cancels the jobs then.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise UsageError(
                f"{words[0]} is not installed here", hint="run envspec on a machine that submits jobs to Slurm"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise ClusterError(f"{words[0]} gives no answer within {_COMMAND_S:g} s") from error
        if done.returncode:
            raise ClusterError(
                f"{words[0]}: {last_line(done.stderr) or f'exit status {done.returncode}'}", hint="see slurmctld's log"
            )
        return done.stdout

    return run_one


def script(options: SlurmOptions, folder: Path, nodes: Sequence[str]) -> str:
    """The batch script of a node, or of several together. folder: of the run, shared by all nodes."""
    shared = folder / _SHARED
    suite = shlex.join([*options.python, str(shared / "suite.pyz")])
    if len(nodes) == 1:
        request, report = shared / "request.json", folder / nodes[0]
        # `exec`: the signals of scancel reach the suite, which ends all its processes.
        return f"#!/bin/sh\nexec {suite} --request {_quoted(request)} --report {_quoted(report)}\n"
    words = (
        f"{suite} --request {_quoted(shared / 'together.json')} --nodes {len(nodes)} --node-rank $SLURM_PROCID "
        # srun runs on the first node.
        "--rendezvous $SLURM_LAUNCH_NODE_IPADDR:$((29400 + SLURM_JOB_ID % 1000)) "
        f"--report {_quoted(folder)}/$SLURMD_NODENAME/{TOGETHER}"
    )
    return f"#!/bin/sh\nexec srun --whole --kill-on-bad-exit=0 sh -c {shlex.quote(f'exec {words}')}\n"


def submission(options: SlurmOptions, folder: Path, nodes: Sequence[str]) -> list[str]:
    """The command that submits the job of a node, or of several together; the script follows it."""
    own = folder / (nodes[0] if len(nodes) == 1 else TOGETHER)
    return [
        *("sbatch", "--parsable", f"--job-name={options.name}"),
        # A job that is started again would report another run. All of a node: other jobs would slow it down.
        *("--no-requeue", "--exclusive", "--mem=0"),
        *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}"),
        *(
            f"--time={options.minutes}",
            f"--chdir={folder}",
            f"--output={str(own / _LOG).replace('%', '%%')}",
            "--open-mode=append",
        ),
        *([f"--partition={options.partition}"] if options.partition else []),
        *options.options,
    ]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def dry_run(options: SlurmOptions, folder: Path) -> str:
    """The commands and scripts of a run, for a node NODE, and for two of them."""
    parts = []
    for nodes in (["NODE"], *([["NODE1", "NODE2"]] if options.is_together else [])):
        lines = script(options, folder, nodes)
        parts.append(f"# {shlex.join(submission(options, folder, nodes))} SCRIPT\n{lines}")
    return "\n".join(parts)


def run(options: SlurmOptions, slurm: Commands, folder: Path, report: Callable[[str], None]) -> None:
    """Run the suite, and write `<node>/receipt.json` and nodes.json into a folder that all nodes share.

    A node without a receipt is `lost`, with the reason. If it is ended, all jobs are cancelled. report: is called with
    lines of text.

    Raises:
        ClusterError: Slurm refused a command, or did not answer. UnfitMachine: no node takes jobs.
        UsageError: options that can't be meant; the folder has another run, or can't be written.
    """
    check_count(options.nodes)
    if options.minutes < 1 or options.limit_s <= 0 or options.poll_s <= 0:
        raise UsageError("a time limit is more than 0", hint="name it in minutes")
    chosen, unavailable = _chosen(options, slurm)
    prepare(folder)
    shared = folder / _SHARED
    shared.mkdir(exist_ok=True)
    write_file(shared / "suite.pyz", options.suite)
    write(shared / "request.json", request_document(options.request, options.lock))
    alone, together = _Jobs(options, slurm, folder, report), _Jobs(options, slurm, folder, report, TOGETHER)
    alone.states.update(unavailable)
    try:
        for node in chosen:
            alone.submit([node])
        alone.wait()
        passed = [node for node in chosen if alone.verdicts.get(node) is Verdict.PASSED]
        if options.is_together and len(passed) > 1:
            checks = tuple(name for name in options.request.checks if name in _DISTRIBUTED)
            required = tuple(name for name in options.request.required if name in checks)
            request = replace(options.request, checks=checks, required=required, named=checks)
            write(shared / "together.json", request_document(request, options.lock))
            report(f"{', '.join(checks)} on {len(passed)} nodes together")
            together.submit(passed)
            together.wait()
        elif options.is_together:
            report(f"{', '.join(_DISTRIBUTED)} on several nodes: not run, since {counted(len(passed), 'node')} passed")
    finally:
        for each in (alone, together):
            each.end()
        write_nodes(folder, alone.states, together.states)


def _chosen(options: SlurmOptions, slurm: Commands) -> tuple[list[str], dict[str, NodeState]]:
    """The nodes to test, and those that take no jobs."""
    words = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%P|%E"]
    words += [f"--partition={options.partition}"] if options.partition else []
    words += [f"--nodes={options.nodelist}"] if options.nodelist else []
    rows = [line.split("|", 3) for line in slurm(words).splitlines() if line.count("|") >= 3]
    # Without a partition jobs go to the default one, which has a star.
    rows = [row for row in rows if options.partition or row[2].endswith("*")]
    found = {name: (state, reason) for name, state, _, reason in rows}
    if options.nodelist:
        named = slurm(["scontrol", "show", "hostnames", options.nodelist]).split()
        unknown = sorted({*named} - {*found})
        if unknown:
            where = f"the partition {options.partition}" if options.partition else "the default partition"
            raise UsageError(f"{where} has no node {unknown[0]}", hint="`sinfo --Node` lists nodes and partitions")
    lost = {
        name: NodeState("lost", joined(f"it accepts no jobs, since it is {state}", "" if reason == "none" else reason))
        for name, (state, reason) in found.items()
        if state.endswith(_NO_ANSWER) or any(part in state for part in _UNAVAILABLE)
    }
    ready = sorted((name for name in found if name not in lost), key=lambda name: (found[name][0] != "idle", name))
    if options.nodes is not None:
        if len(ready) < options.nodes:
            raise UnfitMachine(
                f"{len(ready)} of {counted(len(found), 'node')} accept jobs, and {options.nodes} are requested",
                hint="`sinfo --list-reasons` shows why the others do not",
            )
        # Which of them is Slurm's choice otherwise: the others are not lost.
        ready, lost = ready[: options.nodes], {}
    if not ready:
        raise UnfitMachine(
            f"none of {counted(len(found), 'node')} accepts jobs", hint="`sinfo --list-reasons` shows why"
        )
    return sorted(ready), lost


def programs(suite: Path, receipts: Path, python: Path, scontrol: str, conf: str) -> dict[str, str]:
    """Scripts for slurm.conf's Prolog and HealthCheckProgram, by name; both print one line.

    suite: the suite's file. receipts: the folder of a run. python: of the nodes, 3.9 or newer. conf: the file of
    SLURM_CONF; empty for the default. Slurm gives a HealthCheckProgram neither PATH nor SLURM_CONF, and does nothing
    about its exit status. A node of which nothing is known takes jobs.
    """
    words = f'{_quoted(python)} {_quoted(suite)} --node-receipt {_quoted(receipts)}/"$SLURMD_NODENAME"'
    exported = f"export SLURM_CONF={shlex.quote(conf)}\n" if conf else ""
    control = shlex.quote(scontrol)
    return {
        "prolog": f"""\
#!/bin/sh
# Prolog of slurm.conf: status 1 keeps the job from a node with a fault, and drains the node.
{words}
[ $? -ne 2 ]
""",
        "health": f"""\
#!/bin/sh
# HealthCheckProgram of slurm.conf: drains a node with a fault, unless it is drained.
{exported}line=$({words})
status=$?
echo "$line"
if [ $status -eq 2 ]; then
    case $({control} show node "$SLURMD_NODENAME") in
        *DRAIN*) ;;
        *) {control} update "NodeName=$SLURMD_NODENAME" State=DRAIN "Reason=envspec: $line" ;;
    esac
fi
exit $status
""",
    }


class _Jobs:
    """Jobs of a run, and what became of their nodes. below: folder of a receipt in that of its node."""

    def __init__(
        self, options: SlurmOptions, slurm: Commands, folder: Path, report: Callable[[str], None], below: str = ""
    ) -> None:
        self._options, self._slurm, self._folder, self._report, self._below = options, slurm, folder, report, below
        self.states: dict[str, NodeState] = {}
        self.verdicts: dict[str, Verdict] = {}
        #: Number of a job -> its nodes.
        self._open: dict[str, Sequence[str]] = {}
        #: Jobs that have ended without all receipts: nodes, why they may have none, and until when they may come.
        self._late: list[tuple[Sequence[str], str, float]] = []
        self._waits: dict[str, str] = {}
        self._looks = 0
        self._is_submitting = False
        self._answered = time.monotonic()

    @property
    def _is_over(self) -> bool:
        return not (self._is_submitting or self._open or self._late)

    def submit(self, nodes: Sequence[str]) -> None:
        """A node whose job Slurm refuses is lost."""
        name = TOGETHER if self._below else nodes[0]
        path = self._folder / _SHARED / f"{name}.sh"
        write(path, script(self._options, self._folder, nodes))
        # Slurm makes no folder for a log.
        (self._folder / name).mkdir(exist_ok=True)
        self._is_submitting = True
        try:
            said = self._slurm([*submission(self._options, self._folder, nodes), str(path)])
        except ClusterError as error:
            self._settle(nodes, error.message)
        else:
            # `NUMBER` or `NUMBER;CLUSTER`.
            self._open[said.strip().partition(";")[0]] = nodes
        self._is_submitting = False

    def wait(self) -> None:
        """Until every job has ended, or the time is over."""
        deadline = time.monotonic() + self._options.limit_s
        while self._open or self._late:
            try:
                self._look()
                self._answered = time.monotonic()
            except ClusterError as error:
                if time.monotonic() > self._answered + _AWAY_S:
                    raise
                self._report(f"{error.message}; trying again")
            if self._open and time.monotonic() > deadline:
                minutes = f"no receipt after {self._options.limit_s / 60:.0f} min"
                for job, nodes in list(self._open.items()):
                    self._cancel([job])
                    self._settle(nodes, joined(minutes, self._waits.get(job, "")))
                self._open.clear()
            self._settle_late()
            if self._open or self._late:
                time.sleep(self._options.poll_s)

    def end(self) -> None:
        """Cancel what is still open."""
        if self._is_over:
            return
        # By their name: also a job whose number was not read any more.
        self._cancel([f"--name={self._options.name}"])
        for nodes in self._open.values():
            self._settle(nodes, "the run was ended before its receipt")
        for nodes, why, _ in self._late:
            self._settle(nodes, why)

    def _cancel(self, jobs: Sequence[str]) -> None:
        try:
            self._slurm(["scancel", *jobs])
        except ClusterError as error:
            self._report(f"not cancelled: {error.message}; run `scancel --name {self._options.name}`")

    def _look(self) -> None:
        """Look at every job once."""
        self._looks += 1
        words = ["squeue", "--noheader", "--states=all", f"--name={self._options.name}", "--format=%i|%T|%r"]
        rows = dict(line.split("|", 1) for line in self._slurm(words).splitlines() if "|" in line)
        for job, nodes in list(self._open.items()):
            state, _, reason = rows.get(job, "forgotten by Slurm|").partition("|")
            if job not in rows or state in _ENDED:
                del self._open[job]
                why = "" if state == "COMPLETED" else joined(state, "" if reason == "None" else reason)
                self._late.append((nodes, why, time.monotonic() + _LATE_S))
            elif state == "PENDING":
                if reason.startswith(_NEVER_STARTS):
                    self._cancel([job])
                    del self._open[job]
                    self._settle(nodes, f"its job can't start: {reason}")
                # Most jobs start within seconds.
                elif self._looks > _QUIET_LOOKS and reason not in ("None", self._waits.get(job)):
                    self._report(f"{self._shown(nodes)}: its job waits: {reason}")
                    self._waits[job] = reason
            else:
                self._waits[job] = state.lower()

    def _settle_late(self) -> None:
        """A shared folder may show a receipt late."""
        waiting = []
        for nodes, why, deadline in self._late:
            if all(self._path(node).exists() for node in nodes) or time.monotonic() > deadline:
                self._settle(nodes, why)
            else:
                waiting.append((nodes, why, deadline))
        self._late = waiting

    def _settle(self, nodes: Sequence[str], why: str) -> None:
        """The job of these nodes has ended, or will never run. why: it is no success."""
        for node in nodes:
            receipt, problem = self._receipt(node)
            if receipt:
                self.states[node] = NodeState("finished")
                self.verdicts[node] = receipt.verdict
                text = joined(receipt.verdict.value, "; ".join(receipt.reasons))
            else:
                self.states[node] = NodeState("lost", joined(why or "no receipt", problem))
                text = joined(*self.states[node])
            self._report(f"{self._shown([node])}: {text}")

    def _shown(self, nodes: Sequence[str]) -> str:
        return f"{', '.join(nodes)}{' with the others' if self._below else ''}"

    def _path(self, node: str) -> Path:
        return self._folder / node / self._below / RECEIPT_FILE

    def _receipt(self, node: str) -> tuple[Receipt | None, str]:
        """The receipt of a node, or what its log says."""
        path = self._path(node)
        try:
            return read(path), ""
        except BadReceipt as error:
            if path.exists():
                return None, one_line(error.message)
        log = self._folder / (TOGETHER if self._below else node) / _LOG
        try:
            return None, last_line(read_untrusted(log, _LOG_BYTES).decode("utf-8", "replace"))
        except (OSError, ValueError):
            return None, ""
