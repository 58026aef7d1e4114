"""A case of golden/lock_conda_refusals or lock_conda_decisions: channels and indexes, one run, what came of it.

tests/operations/golden/lock_conda_refusals/README.md tells the form of a case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import date, datetime, time, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

from envspec import documents
from tests.support.builders import conda_packages
from tests.support.builders.conda_channel import CondaChannel, Row, write_rows
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.golden_locks import indexes, what, wheel_lines, with_placeholders
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Status
from tests.support.user import Ran, User

Table = Mapping[str, Any]
#: What only a solver or a programmer says: no message has it.
_JARGON: Final = ("py-rattler", "resolvo", "MatchSpec", "RepoData", "candidates", "├", "└", "Error", "None")


def play(case: Path, folder: Path) -> tuple[User, Ran, dict[str, str]]:
    """Run a case in an empty folder. The last value: what stands for each address, longest address first."""
    data = documents.parse_toml((case / "rows.toml").read_text(encoding="utf-8"))
    with ExitStack() as running:
        user, places, words = running.enter_context(indexes(case, folder))
        for number, (name, rows) in enumerate(_channels(data).items()):
            channel = _written(folder / "channels" / str(number), rows)
            served = next((row for row in data.get("served", ()) if row["name"] == name), None)
            if served is None:
                words = [*words, "--channel-repodata", f"{name}={channel.folder}"]
                continue
            logins = tuple(served["credentials"]) if "credentials" in served else None
            prefix = f"/t/{served['token']}" if "token" in served else ""
            server = running.enter_context(CondaServer({name: channel}, credentials=logins, prefix=prefix))
            if "status" in served:
                server.fail("*", Status(served["status"]))
            places[f"<{name}>"] = f"127.0.0.1:{server.port}"
        # conda's half goes through the proxy that nobody runs, unless NO_PROXY excludes it.
        user.environ.update({"NO_PROXY": "127.0.0.1", **data.get("environ", {})})
        text = (case / "spec.toml").read_text(encoding="utf-8")
        for shown, address in places.items():
            text = text.replace(shown, address)
        user.writes(text)
        ran = user.locks(*words, *data.get("words", ()))
    _keeps_secrets(data, user, ran)
    return user, ran, places


def refusal(case: Path, folder: Path) -> str:
    """`exit N` and the message, as expected.txt has it."""
    _, ran, places = play(case, folder)
    assert ran.stdout == "" and "Traceback" not in ran.stderr and ran.stderr.count("error: ") == 1, ran
    assert not (folder / "locks").exists()
    assert str(folder) not in ran.stderr and "/tmp" not in ran.stderr, ran.stderr
    assert not [word for word in _JARGON if word in ran.error], ran.error
    return with_placeholders(f"exit {ran.status}\n{ran.error}\n", places)


def decisions(case: Path, folder: Path) -> str:
    """Warnings, channels, decisions, conda's packages and wheels of the lock, as expected.txt has them."""
    user, ran, places = play(case, folder)
    assert ran.status == 0, ran.stderr
    [directory] = (folder / "locks").iterdir()
    assert user.locks("--check").status == 0
    document = documents.parse_toml((directory / "envspec.lock").read_text(encoding="utf-8"))
    lines = [f"warning: {text}" for text in ran.warnings]
    lines += [f"channel: {row['name']} is {row['url']}" for row in document["channel"]]
    lines += [f"{what(row)}: {row['value']}: {row['why']}" for row in document.get("decision", ())]
    for resolution in document["resolution"]:
        lines += ["", f"{resolution['platform']}, Python {resolution['python']['version']}"]
        lines += [line for package in resolution.get("conda", ()) for line in _conda_lines(package)]
        lines += [line for package in resolution.get("package", ()) for line in wheel_lines(package)]
    return with_placeholders("\n".join(lines).strip() + "\n", places)


def _conda_lines(row: Table) -> Iterator[str]:
    yield f"{row['name']} {row['version']} {row['build']}: {row['subdir']} of {row['channel']}"
    yield from (f"  {asker['name']} asks {asker['requirement']}" for asker in row["required_by"])
    yield from (f"  provides {held['name']} {held['version']}" for held in row.get("provides", ()))
    if "rejected" in row:
        yield f"  not {row['rejected']['version']}: {row['rejected']['why']}"


def _keeps_secrets(data: Table, user: User, ran: Ran) -> None:
    """Neither a message nor a lock holds what the case calls a secret."""
    left = (ran.stdout + ran.stderr).encode() + b"".join(
        path.read_bytes() for path in (user.folder / "locks").rglob("*") if path.is_file()
    )
    for secret in data.get("secrets", ()):
        assert secret.encode() not in left, secret


def _channels(data: Table) -> dict[str, dict[str, dict[str, Table]]]:
    """Channel -> subdir -> file name -> row."""
    found: dict[str, dict[str, dict[str, Table]]] = {row["name"]: {} for row in data.get("served", ())}
    for name, subdir, filename, fields in _rows(data):
        found.setdefault(name, {}).setdefault(subdir, {})[filename] = fields
    return found


def _rows(data: Table) -> Iterator[tuple[str, str, str, Table]]:
    for row in data.get("set", ()):
        channel = row.get("channel", "conda-forge")
        left_out = row.get("without", ())
        for subdir, filename, fields in _set(row["of"], tuple(row.get("pythons", (GOLDEN_PYTHON,)))):
            if fields["name"] not in left_out:
                yield channel, subdir, filename, fields
    for row in data.get("row", ()):
        subdirs = row.get("subdir", "linux-64")
        for subdir in [subdirs] if isinstance(subdirs, str) else subdirs:
            made = _row(row, subdir)
            yield row.get("channel", "conda-forge"), subdir, made.filename, made.fields()


@cache
def _set(name: str, pythons: tuple[str, ...]) -> tuple[tuple[str, str, Table], ...]:
    archives = getattr(conda_packages, name)(*pythons)
    return tuple((archive.subdir, archive.filename, archive.row()) for archive in archives)


def _row(row: Table, subdir: str) -> Row:
    day = row.get("built", date(2025, 6, 1))
    moment = day if isinstance(day, datetime) else datetime.combine(day, time(12), timezone.utc)
    return Row(
        row["name"],
        row["version"],
        row.get("build", "0"),
        subdir,
        tuple(row.get("depends", ())),
        tuple(row.get("constrains", ())),
        None if row.get("undated") else moment,
        row.get("build_number", 0),
    )


def _written(folder: Path, rows: Mapping[str, Mapping[str, Table]]) -> CondaChannel:
    for subdir in {*rows, "noarch"}:
        write_rows(folder / subdir, subdir, rows.get(subdir, {}))
    return CondaChannel(folder, ())
