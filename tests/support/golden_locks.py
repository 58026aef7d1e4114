"""A case of golden/lock_refusals or lock_decisions: what its indexes hold, one run of envspec, what came of it.

tests/operations/golden/lock_refusals/README.md tells the form of a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import Any

from envspec import documents
from tests.support.builders import ecosystem
from tests.support.builders.projects import PLAIN, File
from tests.support.builders.wheels import sdist, wheel
from tests.support.servers.faults import Status
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import Ran, User

Rows = Mapping[str, Any]


@contextmanager
def indexes(case: Path, folder: Path) -> Iterator[tuple[User, dict[str, str], list[str]]]:
    """The case's indexes, for its length: who resolves against them in an empty folder, and the case's words.

    The second value: what stands for each address, longest address first.
    """
    data = (
        documents.parse_toml((case / "index.toml").read_text(encoding="utf-8"))
        if (case / "index.toml").exists()
        else {}
    )
    with ExitStack() as running:
        servers = {name: running.enter_context(_server(name, data)) for name in _names(data)}
        for fault in data.get("fault", ()):
            servers[fault.get("index", "default")].fail(fault["path"], Status(fault["status"]))
        user = User(folder, servers["default"].url)
        for name, server in servers.items():
            if name.startswith("pytorch-"):
                variant = name.removeprefix("pytorch-")
                user.environ["ENVSPEC_PYTORCH_INDEX"] = server.url.replace(variant, "{variant}")
        yield user, dict(_places(servers)), data.get("words", [])


def play(case: Path, folder: Path) -> tuple[User, Ran, dict[str, str]]:
    """Run a case in an empty folder. The last value: what stands for each address, longest address first."""
    with indexes(case, folder) as (user, places, words):
        text = (case / "spec.toml").read_text(encoding="utf-8")
        for shown, address in places.items():
            text = text.replace(shown, address)
        user.writes(text)
        return user, user.locks(*words), places


def refusal(case: Path, folder: Path) -> str:
    """`exit N` and the message, as expected.txt has it."""
    _, ran, places = play(case, folder)
    assert ran.stdout == "" and "Traceback" not in ran.stderr and ran.stderr.count("error: ") == 1, ran
    assert not (folder / "locks").exists()
    return with_placeholders(f"exit {ran.status}\n{ran.error}\n", places)


def decisions(case: Path, folder: Path) -> str:
    """Warnings, decisions and packages of the lock, as expected.txt has them."""
    user, ran, places = play(case, folder)
    assert ran.status == 0, ran.stderr
    assert user.locks("--check").status == 0
    [document] = [
        documents.parse_toml(path.read_text(encoding="utf-8")) for path in folder.glob("locks/*/envspec.lock")
    ]
    lines = [f"warning: {text}" for text in ran.warnings]
    lines += [f"{what(row)}: {row['value']}: {row['why']}" for row in document.get("decision", ())]
    for resolution in document["resolution"]:
        lines += ["", f"{resolution['platform']}, Python {resolution['python']['version']}"]
        lines += [line for package in resolution.get("package", ()) for line in wheel_lines(package)]
    return with_placeholders("\n".join(lines).strip() + "\n", places)


def _names(data: Rows) -> list[str]:
    rows = [row for key in ("wheel", "sdist", "set") for row in data.get(key, ())]
    return list(dict.fromkeys(["default", *data.get("plain", ()), *(row.get("index", "default") for row in rows)]))


def _server(name: str, data: Rows) -> IndexServer:
    own = {
        key: [r for r in data.get(key, ()) if r.get("index", "default") == name] for key in ("wheel", "sdist", "set")
    }
    files: list[File] = []
    for row in own["set"]:
        made = getattr(ecosystem, row["of"])
        files += made(row["variant"]) if "variant" in row else made()
    for row in own["wheel"]:
        words = {key: row[key] for key in ("requires", "extras", "requires_python", "build") if key in row}
        for tag in row.get("tags", ["py3-none-any"]):
            files.append(_file(row, wheel(row["name"], row["version"], tag=tag, **words)))
    for row in own["sdist"]:
        words = {key: row[key] for key in _OF_SDIST if key in row}
        made = sdist(row["name"], row["version"], **words)
        if row.get("damaged"):
            made = replace(made, data=made.data[:100])
        files.append(_file(row, replace(made, requires_python=None) if row.get("hides_python") else made))
    prefix = f"/whl/{name.removeprefix('pytorch-')}" if name.startswith("pytorch-") else ""
    return IndexServer(files, PLAIN if prefix or name in data.get("plain", ()) else FRIENDLY, prefix=prefix)


_OF_SDIST = ("requires", "requires_python", "metadata_version", "on_build", "build_requires")


def _file(row: Rows, artifact: Any) -> File:
    day = row.get("uploaded", date(2024, 1, 1))
    moment = day if isinstance(day, datetime) else datetime.combine(day, time(12), timezone.utc)
    return File(artifact, moment, row.get("yanked"), row.get("claimed_sha256"))


def _places(servers: Mapping[str, IndexServer]) -> Iterator[tuple[str, str]]:
    for name, server in servers.items():
        yield f"<{name} simple>", server.url.rstrip("/")
    for name, server in servers.items():
        yield f"<{name}>", server.root


def with_placeholders(text: str, places: Mapping[str, str]) -> str:
    """The text with what stands for each address."""
    for shown, address in places.items():
        text = text.replace(address, shown)
    # Facts of the run, not of the case: uv and pip tell of another interpreter than the target's.
    return re.sub(r"127\.0\.0\.1:\d+", "<somewhere>", text)


def what(row: Rows) -> str:
    """What a decision is about, and for which platform."""
    return f"{row['what']} ({row['platform']})" if "platform" in row else str(row["what"])


def wheel_lines(row: Rows) -> Iterator[str]:
    """A wheel, who asked for it, and why it is not newer."""
    file, extras = row["file"], ",".join(row.get("extras", ()))
    yield f"{row['name']}{f'[{extras}]' if extras else ''} {row['version']}: {file['filename']} of {file['index']}"
    if "url" in file:
        yield f"  from {file['url']}"
    yield from (f"  {asker['name']} asks {asker['requirement']}" for asker in row["required_by"])
    if "rejected" in row:
        yield f"  not {row['rejected']['version']}: {row['rejected']['why']}"
