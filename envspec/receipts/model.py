"""The receipt of one run: a value, and receipt.json, which holds it.

`envspec schema receipt` prints its JSON schema, whose descriptions are the docstrings.
"""

from __future__ import annotations

import json
from datetime import timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from envspec.conformance.receipt import FORMAT
from envspec.conformance.request import Nodes
from envspec.conformance.results import CheckOutcome, Gpu, Status
from envspec.errors import UsageError
from envspec.spec.errors import dotted
from envspec.verifier.regular import read_regular

#: A time with any zone, converted to UTC.
Time = Annotated[AwareDatetime, AfterValidator(lambda value: value.astimezone(timezone.utc))]


class Verdict(Enum):
    """The result of a run: `not known` if its question was not answered and nothing failed."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_KNOWN = "not known"


class Part(BaseModel):
    """A table of the receipt; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Machine(Part):
    """The machine as the suite's process saw it; unknown values are empty."""

    system: str = ""
    kernel: str = ""
    architecture: str = ""
    cpu: str = ""
    cpus: int | None = None
    """CPUs that the suite was allowed to use."""
    load: tuple[float, ...] = ()
    """Processes that ran or waited for a CPU, on average over a minute: at the suite's beginning, and at its end."""
    memory_bytes: int | None = None
    shm_bytes: int | None = None
    """Of /dev/shm."""
    python: str = ""
    executable: str = ""
    libc: str = ""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the suite's process that change what CUDA, its libraries, NCCL and torch do: `NCCL_P2P_LEVEL`."""
    driver: str = ""
    """NVIDIA's."""
    cuda_driver: str = ""
    """The newest CUDA that the driver runs; of a forward compatibility package, that package's."""
    toolkit: str = ""
    """Version of NVIDIA's container toolkit on the host."""
    gpus: tuple[Gpu, ...] = ()
    topology: dict[str, str] = Field(default_factory=dict)
    """Pair of GPUs, as `0-1` -> their connection: `NV4` for four NVLinks, else nvidia-smi's term."""


class LockName(Part):
    """The lock that was tested."""

    name: str
    sha256: str
    """Of envspec.lock, hexadecimal."""
    input_sha256: str
    """Of the canonical spec."""
    identity: str
    """Hash of everything that determines an image."""


class Image(Part):
    """The image in which the suite ran."""

    reference: str
    id: str
    pulled_bytes: int | None = None
    """None if the image was already in the engine."""
    pull_s: float | None = None


class LocalPython(Part):
    """The Python that ran the suite, if not an image's."""

    python: str
    prefix: str
    is_locked: bool | None = None
    """Whether the environment matches the lock, according to the check `lock`; None if unknown."""


class Counts(Part):
    """Counts by outcome; what was not run does not count as passed."""

    passed: int = 0
    failed: int = 0
    not_run: int = 0
    not_known: int = 0
    """Checks that ran out of time, or ended without a result."""
    info: int = 0
    """Findings that neither pass nor fail."""


class Summary(Part):
    """The run in numbers."""

    checks: Counts
    findings: Counts
    required_not_run: tuple[str, ...] = ()
    """Required checks that were not run: each fails the run."""
    question: tuple[str, ...] = ()
    """Checks that the run needs for an answer: the named ones, else those about training; none without torch."""
    unanswered: tuple[str, ...] = ()
    """Those of them that were not run, and all checks that are not known: the verdict is not `passed`."""


class BaselineRow(Part):
    """A number compared with the recorded one."""

    check: str
    name: str
    unit: str
    recorded: float
    now: float
    change: float
    """(now - recorded) / recorded."""
    tolerance: float
    """How much worse it may be, as a fraction: for a rate from the spreads of both runs."""
    is_worse: bool

    @property
    def text(self) -> str:
        return f"{self.check}: {self.name} is {100 * abs(self.change):.0f} % worse than the baseline's"


class Baseline(Part):
    """The run compared with a recorded receipt."""

    lock: str
    made_at: Time
    machine: str
    """Kind of machine of the recorded receipt."""
    not_compared: str = ""
    """Why nothing is compared; empty if it is."""
    rows: tuple[BaselineRow, ...] = ()
    missing: tuple[str, ...] = ()
    """Numbers of the recorded receipt that this run lacks, or that one of the runs could not measure well enough."""

    def worse_rows(self) -> list[BaselineRow]:
        return [row for row in self.rows if row.is_worse]


class Receipt(Part):
    """Result of one run of the conformance suite."""

    format: Annotated[int, Field(ge=1)] = FORMAT
    envspec: str
    """Version of envspec that wrote it."""
    made_at: Time
    """UTC."""
    verdict: Verdict
    reasons: tuple[str, ...] = ()
    """Why the verdict is `failed` or `not known`."""
    summary: Summary
    lock: LockName | None = None
    """None if the stack was tested as it is."""
    as_if: LockName | None = None
    """A lock with which the stack was compared, though it was not made from it: differences inform."""
    image: Image | None = None
    local: LocalPython | None = None
    """Either `image` or `local` is set."""
    device: str
    """`cuda` or `cpu`."""
    seed: int
    nodes: Nodes = Nodes()
    world_size: int | None = None
    """Requested number of processes of the distributed checks on this machine; None: one for each GPU."""
    seconds: float
    """Wall time of the whole suite."""
    machine: Machine
    ran: dict[str, str] = Field(default_factory=dict)
    """Library that ran in any check -> its version; several if checks differ."""
    checks: tuple[CheckOutcome, ...]
    baseline: Baseline | None = None

    @property
    def subject(self) -> str:
        """The lock's name; without one, what was tested: `torch 2.9.1+cu128, no lock`."""
        if self.lock:
            return self.lock.name
        return f"torch {self.ran.get('torch', '(not imported)')}, no lock"

    def checks_of(self, *statuses: Status) -> list[CheckOutcome]:
        """The checks that ended with one of the statuses."""
        return [check for check in self.checks if check.status in statuses]

    def names_of(self, *statuses: Status) -> list[str]:
        """The names of `checks_of`."""
        return [check.check for check in self.checks_of(*statuses)]

    def worse_rows(self) -> list[BaselineRow]:
        """Numbers that are worse than the baseline's."""
        return self.baseline.worse_rows() if self.baseline else []


RECEIPT_FILE: Final = "receipt.json"
_WHAT: Final = "name a receipt.json or a folder with one"


class BadReceipt(UsageError, code="bad-receipt"):
    """A file that is not a valid receipt, or that a newer envspec wrote."""


def dump(receipt: Receipt) -> str:
    """The receipt as JSON; the same text for the same receipt."""
    return receipt.model_dump_json(indent=2) + "\n"


def read(path: Path) -> Receipt:
    """The receipt in a file, or in a folder's receipt.json.

    Raises:
        BadReceipt: it can't be read, a newer envspec wrote it, or keys are missing or wrong; the message names the file
            and every such key.
    """
    if path.is_dir():
        path = path / RECEIPT_FILE
    try:
        return load(read_regular(path).decode("utf-8"), str(path))
    except OSError as error:
        raise BadReceipt(f"{path} can't be read: {error.strerror}", hint=_WHAT) from error
    except UnicodeDecodeError as error:
        raise BadReceipt(f"{path} is not a receipt: it is not UTF-8", hint=_WHAT) from error


def load(text: str, where: str) -> Receipt:
    """The receipt in `text`. where: its name in messages.

    Raises:
        BadReceipt: as `read`.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReceipt(f"{where} is not JSON: {error}", hint=_WHAT) from error
    found = None
    if isinstance(data, dict):
        found = data.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise BadReceipt(
            f"{where} is a receipt of format {found}, this envspec reads up to {FORMAT}",
            hint=f"envspec {data.get('envspec', '(a newer one)')} wrote it: update envspec",
        )
    if not isinstance(found, int) or "checks" not in data:
        raise BadReceipt(
            f"{where} is not a receipt: it has no format and checks", hint="`envspec conformance` writes receipts"
        )
    try:
        return Receipt.model_validate_json(text)
    except ValidationError as error:
        raise BadReceipt(
            f"{where} is not a valid receipt: {'; '.join(problems(error))}", hint="use the file as envspec wrote it"
        ) from error


def json_schema() -> dict[str, Any]:
    """The receipt's JSON schema, draft 2020-12."""
    schema = Receipt.model_json_schema(mode="serialization")
    del schema["title"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "envspec: receipt.json",
        **schema,
    }


def problems(error: ValidationError) -> list[str]:
    """`checks[3].status: ...`, one for each problem that pydantic found."""
    texts = {"missing": "is missing", "extra_forbidden": "is unknown", "unexpected_keyword_argument": "is unknown"}
    rows = []
    for found in error.errors():
        where = dotted(found["loc"]) or "the document"
        rows.append(f"{where}: {texts.get(found['type'], found['msg'])}")
    return rows
