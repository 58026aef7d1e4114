"""The folder of a run on many nodes: a receipt for each node, and nodes.json with what became of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, Literal, NamedTuple

from envspec.conformance.request import SuiteRequest
from envspec.errors import NetworkError, UsageError
from envspec.escaping import one_line
from envspec.io.files import write_file
from envspec.receipts.model import LockName

NODES_FILE: Final = "nodes.json"
#: In a node's folder: what it did together with other nodes.
TOGETHER: Final = "together"
#: Characters of a line that a reason quotes.
_QUOTED: Final = 600


class ClusterError(NetworkError):
    """The cluster refused a request, or did not answer. status: of HTTP; None without an answer."""

    code = "cluster"

    def __init__(self, message: str, *, hint: str | None = None, status: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status

    @property
    def is_final(self) -> bool:
        """Whether later requests will fail, too: nothing answers, or this user lacks the permission."""
        return self.status in (None, 401, 403)


class NodeState(NamedTuple):
    """What is known of a node in the end: a receipt of it was read, or the reason why there is none."""

    state: Literal["finished", "lost"]
    reason: str = ""


def check_count(nodes: int | None) -> None:
    """Raises UsageError for a run on no node; None is every node."""
    if nodes is not None and nodes < 1:
        raise UsageError(f"there is no run on {nodes} nodes", hint="name 1 or more, or test every node")


def prepare(folder: Path) -> None:
    """Make the folder of a run, before anything runs.

    Raises:
        UsageError: it has another run, or can't be made.
    """
    if (folder / NODES_FILE).exists():
        raise UsageError(f"{folder} has the receipts of another run", hint="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


def write(path: Path, text: str) -> None:
    """Raises UsageError if the file can't be written."""
    try:
        write_file(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} can't be written: {error.strerror}", hint="name another folder")


def write_nodes(folder: Path, states: Mapping[str, NodeState], together: Mapping[str, NodeState] | None = None) -> None:
    """Write nodes.json. together: of the checks on several nodes at once, by the nodes that took part."""

    def rows(found: Mapping[str, NodeState]) -> dict[str, dict[str, str]]:
        return {name: state._asdict() for name, state in sorted(found.items())}

    document = {"nodes": rows(states), **({"together": rows(together)} if together else {})}
    write(folder / NODES_FILE, json.dumps(document, indent=2) + "\n")


def request_document(request: SuiteRequest, lock: LockName | None) -> str:
    """What `--request` of the suite's file reads."""
    return json.dumps({"request": asdict(request), "lock": lock and lock.model_dump()})


def last_line(log: str) -> str:
    """The line of a log that says most about its end."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return one_line((errors or lines)[-1])[:_QUOTED] if lines else ""


def joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
