"""The receipt as a value; `envspec schema receipt` prints its JSON schema, whose descriptions are the docstrings."""

from __future__ import annotations

from datetime import timezone
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from envspec.conformance.results import Cause, Kind, Level, Status

#: Of the document; a reader refuses a newer one.
FORMAT = 1


#: A moment, whatever its zone was: pages and tables say UTC.
Moment = Annotated[AwareDatetime, AfterValidator(lambda told: told.astimezone(timezone.utc))]


class Verdict(Enum):
    """What the run says of the stack on the machine."""

    PASSED = "passed"
    FAILED = "failed"


class Part(BaseModel):
    """A table of the receipt: frozen, and nothing in it that has no name here."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class FindingRow(Part):
    """One thing that a check looked at."""

    name: str
    kind: Kind
    """exact and bounded ones judge; informing ones and those that were not run do not."""
    ok: bool | None = None
    """None where nothing is judged."""
    value: float | None = None
    """In `unit`; None where there is no number, or where what came was none (NaN, infinity)."""
    unit: str = ""
    bound: float | None = None
    """What `value` is held against, by `relation`, which is `<=` or `>=`."""
    relation: str = ""
    formula: str = ""
    source: str = ""
    """Where the bound comes from."""
    told: str = ""
    """What was seen, or why it was not run."""


class FingerprintRow(Part):
    """A hash over results: SHA-256, hexadecimal."""

    name: str
    level: Level
    """A universal one is the same on every machine; a keyed one where `key` is the same."""
    digest: str
    key: str = ""


class PeakRow(Part):
    """The most memory that a check's processes held, in bytes."""

    allocated_bytes: int | None = None
    """On the device, in tensors."""
    reserved_bytes: int | None = None
    """On the device, by torch's allocator."""
    host_bytes: int | None = None


class Phase(Part):
    """A part of a check."""

    name: str
    seconds: float


class CheckRow(Part):
    """One check and what came of it."""

    check: str
    status: Status
    cause: Cause | None = None
    """Of a failure: what the check found, or what became of its process."""
    reason: str = ""
    hint: str = ""
    required: bool = False
    """Whether it fails the run that this check was not run."""
    seconds: float = 0.0
    """From its turn to its end."""
    limit_s: float = 0.0
    phases: tuple[Phase, ...] = ()
    ahead: tuple[Phase, ...] = ()
    """What it imported before its turn, while other checks ran: not in `seconds`."""
    findings: tuple[FindingRow, ...] = ()
    fingerprints: tuple[FingerprintRow, ...] = ()
    ran: dict[str, str] = Field(default_factory=dict)
    """What really ran -> its version."""
    peak: PeakRow = PeakRow()
    log: str = ""
    """The end of what it printed, where it failed."""


class Gpu(Part):
    """A GPU as NVML tells of it."""

    index: int
    name: str
    uuid: str
    compute_capability: str
    memory_bytes: int


class Machine(Part):
    """The machine as the suite's process saw it; what it could not know is empty."""

    system: str = ""
    kernel: str = ""
    architecture: str = ""
    cpu: str = ""
    cpus: int | None = None
    """Those that the suite was allowed to run on."""
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    """Of /dev/shm."""
    python: str = ""
    executable: str = ""
    libc: str = ""
    driver: str = ""
    """NVIDIA's."""
    toolkit: str = ""
    """NVIDIA's container toolkit, as the host knows it."""
    gpus: tuple[Gpu, ...] = ()
    topology: dict[str, str] = Field(default_factory=dict)
    """Pair of GPUs, as `0-1` -> how they are joined: `NV4` for four NVLinks, else nvidia-smi's word."""


class LockName(Part):
    """Which lock was tested."""

    name: str
    sha256: str
    """Of envspec.lock, hexadecimal."""
    input_sha256: str
    """Of the canonical spec."""
    identity: str
    """Of all that an image follows from."""


class Image(Part):
    """The image in which the suite ran."""

    reference: str
    id: str
    pulled_bytes: int | None = None
    """None where the image was there."""
    pull_s: float | None = None


class Here(Part):
    """The Python in which the suite ran, where that was no image."""

    python: str
    prefix: str
    is_locked: bool | None = None
    """Whether the environment is the lock's, as the check `lock` found; None where that can't be said."""


class Nodes(Part):
    """The machines of the run."""

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None


class Counts(Part):
    """How many of a kind; nothing is counted twice, and what was not run is no pass."""

    passed: int = 0
    failed: int = 0
    not_run: int = 0
    informing: int = 0
    """Findings that judge nothing."""


class Summary(Part):
    """The run in numbers."""

    checks: Counts
    findings: Counts
    required_not_run: tuple[str, ...] = ()
    """Checks that had to run and did not: each fails the run."""


class BaselineRow(Part):
    """A number beside the recorded one."""

    check: str
    name: str
    unit: str
    recorded: float
    now: float
    change: float
    """(now - recorded) / recorded."""
    tolerance: float
    """How far it may change to the worse."""
    is_worse: bool


class Baseline(Part):
    """The run beside a recorded receipt."""

    lock: str
    made_at: Moment
    machine: str
    """What the recorded receipt ran on."""
    not_compared: str = ""
    """Why nothing is compared; empty where it is."""
    rows: tuple[BaselineRow, ...] = ()
    missing: tuple[str, ...] = ()
    """Numbers that the recorded receipt has and this run has not."""


class Receipt(Part):
    """What one run of the conformance suite has shown."""

    format: Annotated[int, Field(ge=1)] = FORMAT
    envspec: str
    """The version that wrote it."""
    made_at: Moment
    """UTC."""
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why the verdict is not `passed`."""
    summary: Summary
    lock: LockName
    image: Image | None = None
    here: Here | None = None
    """One of `image` and `here` is given."""
    device: str
    """`cuda` or `cpu`."""
    seed: int
    nodes: Nodes = Nodes()
    world_size: int | None = None
    """Processes of the distributed checks on this machine, as asked; None: as many as it has GPUs."""
    seconds: float
    """The whole suite, on the wall's clock."""
    machine: Machine
    ran: dict[str, str] = Field(default_factory=dict)
    """What really ran, over all checks -> its version; several where checks differ."""
    checks: tuple[CheckRow, ...]
    baseline: Baseline | None = None
