"""[services] of a draft: what the commands and ports of a container mean. Corrects the ledger."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from envspec.importers.types import Clue, DraftRequirement, Import, Outcome, Source
from envspec.lockfile.toml_writer import Value
from envspec.spec.pip_lines import name_in


class _Service(NamedTuple):
    """command: a pattern in what a container starts. ports: that mean it if its package is required. package: for
    Python, which it runs; `brings` are others that require it. apt: the package with the same meaning.
    """

    command: str
    ports: tuple[int, ...]
    package: str = ""
    brings: tuple[str, ...] = ()
    apt: str = ""


SERVICES: Final = {
    "jupyter": _Service(r"\bjupyter(-lab|-notebook|-server)?\b", (8888,), "jupyterlab", ("jupyter", "notebook")),
    "tensorboard": _Service(r"\btensorboard\b", (6006,), "tensorboard"),
    "ssh": _Service(r"\bsshd\b|\bservice ssh\b", (22, 2222), apt="openssh-server"),
}
_PORT: Final = re.compile(r"--(?:\w+\.)?port[= ](\d{2,5})\b")
_LOGDIR: Final = re.compile(r"--logdir[= ]([\w./-]+)")


def services_of(imported: Import) -> Mapping[str, Value]:
    """The services that a container of the sources starts. Their packages are required, and the entries of the ledger
    name them.
    """
    found: dict[str, Value] = {}
    started_by: dict[Source, list[str]] = {}
    for name, service in SERVICES.items():
        clues = _clues(imported, service)
        if not clues:
            continue
        is_missing = bool(service.package) and _required(imported).isdisjoint((service.package, *service.brings))
        if is_missing and imported.draft.pip_from is not None:
            # It would have to be added to that lock.
            continue
        found[name] = _settings(name, service, clues)
        if is_missing:
            imported.draft.dependencies.append(DraftRequirement(service.package, clues[0].source))
        for source in dict.fromkeys(each.source for each in clues):
            started_by.setdefault(source, []).append(f"[services] {name}")
    for at, entry in enumerate(imported.ledger):
        if entry.source in started_by and entry.outcome in (Outcome.OUTSIDE, Outcome.TRANSLATED):
            reason = "; ".join(started_by[entry.source])
            imported.ledger[at] = entry._replace(outcome=Outcome.TRANSLATED, reason=reason)
    return found


def start_of(imported: Import, services: Mapping[str, Value]) -> dict[str, Value]:
    """`entrypoint` and `command` of [image]. services: what `services_of` returned.

    The entrypoint of an image with services starts them; the command of the sources then runs next to them, unless it
    is what starts one.
    """
    started = imported.draft.started
    if not services:
        return {key: list(each.words) for key, each in started.items()}
    command = [word for key in ("entrypoint", "command") if key in started for word in started[key].words]
    reason = "[image] command, which runs next to [services]"
    outcome = Outcome.TRANSLATED
    if any(re.search(service.command, each.value) for each in imported.draft.starts for service in SERVICES.values()):
        command, outcome, reason = [], Outcome.OUTSIDE, "the image's entrypoint starts [services]"
    sources = {each.source for each in started.values()}
    for at, entry in enumerate(imported.ledger):
        if entry.source in sources and entry.reason.startswith("[image] "):
            imported.ledger[at] = entry._replace(outcome=outcome, reason=reason)
    return {"command": command}


def _settings(name: str, service: _Service, clues: list[Clue]) -> dict[str, Value]:
    """The table of a service, as its command says."""
    command = " ".join(each.value for each in clues if re.search(service.command, each.value))
    # The last one of the table: envspec's SSH server does not listen on a port that needs root.
    values: dict[str, Value] = {"port": service.ports[-1]}
    if port := _PORT.search(command):
        values["port"] = int(port[1])
    if name == "tensorboard" and (folder := _LOGDIR.search(command)):
        values["logdir"] = folder[1]
    return values


def _clues(imported: Import, service: _Service) -> list[Clue]:
    """What starts the service; empty if nothing does."""
    draft = imported.draft
    started = [each for each in draft.starts if re.search(service.command, each.value)]
    has_package = not _required(imported).isdisjoint((service.package, *service.brings))
    if not (started or has_package or service.apt in draft.apt):
        return []
    return started + [each for each in draft.ports if each.value in map(str, service.ports)]


def _required(imported: Import) -> set[str]:
    found: set[str] = set()
    lines = [each.text for each in imported.draft.dependencies]
    lines += imported.draft.match_specs
    if imported.draft.pip_from is not None:
        found.update(imported.draft.versions)
    for line in lines:
        found.add(name_in(line.rpartition("::")[2]))
    return found
