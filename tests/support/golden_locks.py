"""A case of tests/operations/golden/lock_*: a spec, what its indexes and channels have, one run, and its outcome.

The README.md of each group describes the files of a case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import date, datetime, time, timezone
from functools import cache
from pathlib import Path
from typing import Any, Final

from envspec import documents
from envspec.reasons import Reason, Why, words
from envspec.structs import replace
from tests.support.builders import conda_packages, ecosystem
from tests.support.builders.conda_channel import CondaChannel, Row, write_rows
from tests.support.builders.conda_packages import GOLDEN_PYTHON
from tests.support.builders.environments import RUNNING, SERIES
from tests.support.builders.projects import PLAIN, File
from tests.support.builders.wheels import Artifact, sdist, wheel
from tests.support.golden import GoldenCase
from tests.support.servers.channel import CondaServer
from tests.support.servers.faults import Status
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import Ran, User

Table = Mapping[str, Any]
#: Words of solvers and programmers: no message about conda has one.
_JARGON: Final = ("py-rattler", "resolvo", "MatchSpec", "RepoData", "candidates", "├", "└", "Error", "None")

#: uv's explanation, from its first sentence to its last: a release of uv may word it otherwise.
_UV_EXPLANATION: Final = re.compile(r"Because .*unsatisfiable\.")
_QUOTED_NAME: Final = re.compile(r"[\"']([a-z][a-z0-9._-]*[a-z0-9])")


def play(case: GoldenCase, folder: Path) -> tuple[User, Ran, dict[str, str]]:
    """Run a case in an empty folder. The last value: what stands for each address, longest address first."""
    index, rows = case.table("index.toml"), case.table("rows.toml")
    with ExitStack() as running:
        servers = {name: running.enter_context(_server(name, index)) for name in _names(index)}
        for fault in index.get("fault", ()):
            servers[fault.get("index", "default")].fail(fault["path"], Status(fault["status"]))
        user = User(folder, servers["default"].url)
        places = {f"<{name} simple>": server.url.rstrip("/") for name, server in servers.items()}
        places |= {f"<{name}>": server.root for name, server in servers.items()}
        for name, index_server in servers.items():
            if name.startswith("pytorch-"):
                template = index_server.url.replace(name.removeprefix("pytorch-"), "{variant}")
                user.environ["ENVSPEC_PYTORCH_INDEX"] = template
        words = [*index.get("words", ()), *rows.get("words", ())]
        if rows:
            # Channels are requested through the proxy that nobody runs, unless NO_PROXY excludes them.
            user.environ.update({"NO_PROXY": "127.0.0.1", **rows.get("environ", {})})
        for number, (name, files) in enumerate(_channels(rows).items()):
            channel = _written(folder / "channels" / str(number), files)
            served = next((row for row in rows.get("served", ()) if row["name"] == name), None)
            if served is None:
                words += ["--channel-repodata", f"{name}={channel.folder}"]
                continue
            login = tuple(served["credentials"]) if "credentials" in served else None
            prefix = f"/t/{served['token']}" if "token" in served else ""
            server = running.enter_context(CondaServer({name: channel}, credentials=login, prefix=prefix))
            if "status" in served:
                server.fail("*", Status(served["status"]))
            places[f"<{name}>"] = server.host
        text = case.text("spec.toml")
        if "<python>" in text:
            # What builds has to be on this machine.
            places |= {"<python>": RUNNING, "Python <series>": f"Python {SERIES}"}
        for shown, address in places.items():
            text = text.replace(shown, address)
        case.unpack(folder, under="files/")
        user.writes(text)
        ran = user.locks(*words)
    locked = [path.read_bytes() for path in (folder / "locks").rglob("*") if path.is_file()]
    left = b"".join([ran.stdout.encode(), ran.stderr.encode(), *locked])
    assert not [secret for secret in rows.get("secrets", ()) if secret.encode() in left]
    return user, ran, places


def refusal(case: GoldenCase, folder: Path) -> str:
    """`exit N` and the message, as expected.txt has it."""
    _, ran, places = play(case, folder)
    assert ran.stdout == "" and "Traceback" not in ran.stderr and ran.stderr.count("error: ") == 1, ran
    assert not (folder / "locks").exists()
    if "rows.toml" in case.parts:
        assert str(folder) not in ran.stderr and "/tmp" not in ran.stderr, ran.stderr
        assert not [word for word in _JARGON if word in ran.error], ran.error
    error = _UV_EXPLANATION.sub(lambda found: _names_in(found[0], case), ran.error)
    return _with_placeholders(f"exit {ran.status}\n{error}\n", places)


def _names_in(explanation: str, case: GoldenCase) -> str:
    """The packages that uv's explanation names."""
    index = case.table("index.toml")
    names = {file.artifact.name for server in _names(index) for file in _files(server, index)}
    names.update(_QUOTED_NAME.findall(case.text("spec.toml") + case.parts.get("index.toml", b"").decode()))
    words = set(re.findall(r"[a-z][a-z0-9._-]*[a-z0-9]", explanation))
    return f"<uv names {', '.join(sorted(names & words))}>"


def decisions(case: GoldenCase, folder: Path) -> str:
    """Warnings, channels, decisions and packages of the lock, as expected.txt has them."""
    user, ran, places = play(case, folder)
    assert ran.status == 0, ran.stderr
    # In a cache without the lock, all of it is computed again.
    user.locked("--check", ENVSPEC_CACHE_DIR=str(folder / "no-cache"))
    first, *variants = [_read(path) for path in sorted(folder.glob("locks/*/envspec.lock"))]
    lines = [f"warning: {text}" for text in ran.warnings] + _decided(first)
    for document in variants:
        lines += ["", f"== {document['name']}", *_decided(document)]
    return _with_placeholders("\n".join(lines).strip() + "\n", places)


def read_why(rows: Any) -> Why:
    """Reasons, of parsed TOML."""
    found = []
    for row in rows:
        values = {key: text for key, text in row.items() if key not in ("code", "because")}
        found.append(Reason(row["code"], tuple(sorted(values.items())), read_why(row.get("because", ()))))
    return tuple(found)


def _decided(document: Table) -> list[str]:
    lines = [f"channel: {row['name']} is {row['url']}" for row in document.get("channel", ())]
    for row in document.get("override", ()):
        removed = "removed: " if row["removed"] else ""
        lines.append(f"override: {removed}{row['requirement']}: {row['reason']}")
    images = [document, *document.get("platform_cuda", ())]
    for pinned in (pinned for each in images for pinned in each.get("base_image", {}).get("digests", ())):
        known = pinned.get("digest", "no digest")
        lines.append(f"digest ({pinned['platform']}): {known}: {pinned['source']} {pinned.get('kind', '')}".rstrip())
    for row in document.get("decision", ()):
        platform = f" ({row['platform']})" if "platform" in row else ""
        lines.append(f"{row['what']}{platform}: {row['value']}: {words(read_why(row['why']))}")
    for resolution in document["resolution"]:
        lines += ["", f"{resolution['platform']}, Python {resolution['python']['version']}"]
        lines += [line for package in resolution.get("conda", ()) for line in _lines(package)]
        lines += [line for package in resolution.get("package", ()) for line in _lines(package)]
        for shared in resolution.get("shared_file", ()):
            whose = f"of {shared.get('owner', 'nobody')}, not of {', '.join(shared['others'])} ({shared['why']})"
            lines.append(f"{', '.join(shared['paths'])}: {whose}")
    return lines


def _read(path: Path) -> Table:
    return documents.parse_toml(path.read_text(encoding="utf-8"))


def _lines(package: Table) -> Iterator[str]:
    """A package, what requires it, and why it is not newer."""
    if "file" in package:
        file, extras = package["file"], ",".join(package.get("extras", ()))
        name = f"{package['name']}[{extras}]" if extras else package["name"]
        measured = f", hash {file['hash']}" if "hash" in file else ""
        yield f"{name} {package['version']}: {file['filename']} of {file['index']}{measured}"
        if "url" in file:
            yield f"  from {file['url']}"
    else:
        name, version, build = package["name"], package["version"], package["build"]
        yield f"{name} {version} {build}: {package['subdir']} of {package['channel']}"
    for by in package["required_by"]:
        yield f"  {by['name']} requires {by['requirement']}" + (f" for {by['replaces']}" if "replaces" in by else "")
    yield from (f"  provides {each['name']} {each['version']}" for each in package.get("provides", ()))
    yield from (f"  without {text}" for text in package.get("removed", ()))
    if "built" in package:
        yield f"  built: {package['built']['filename']}"
    if "rejected" in package:
        yield f"  not {package['rejected']['version']}: {words(read_why(package['rejected']['why']))}"


def _with_placeholders(text: str, places: Mapping[str, str]) -> str:
    """The text with what stands for each address."""
    for shown, address in places.items():
        text = text.replace(address, shown)
    # Facts of the run, not of the case: uv and pip name another interpreter than the target's.
    return re.sub(r"127\.0\.0\.1:\d+", "<somewhere>", text)


def _names(data: Table) -> list[str]:
    rows = [row for key in ("wheel", "sdist", "set") for row in data.get(key, ())]
    return list(dict.fromkeys(["default", *data.get("plain", ()), *(row.get("index", "default") for row in rows)]))


def _server(name: str, data: Table) -> IndexServer:
    prefix = f"/whl/{name.removeprefix('pytorch-')}" if name.startswith("pytorch-") else ""
    is_plain = prefix or name in data.get("plain", ())
    return IndexServer(_files(name, data), PLAIN if is_plain else FRIENDLY, prefix=prefix)


def _files(name: str, data: Table) -> list[File]:
    """What an index serves."""

    def own(key: str) -> list[Table]:
        return [row for row in data.get(key, ()) if row.get("index", "default") == name]

    files: list[File] = []
    for row in own("set"):
        made = getattr(ecosystem, row["of"])
        files += made(row["variant"]) if "variant" in row else made()
    for row in own("wheel"):
        words = {key: row[key] for key in ("requires", "extras", "requires_python", "build") if key in row}
        if "files" in row:
            words["files"] = {path: text.encode() for path, text in row["files"].items()}
        for tag in row.get("tags", ["py3-none-any"]):
            files.append(_file(row, wheel(row["name"], row["version"], tag=tag, **words)))
    for row in own("sdist"):
        keys = ("requires", "requires_python", "metadata_version", "on_build", "build_requires")
        written = int(_noon(row["written"]).timestamp()) if "written" in row else 0
        source = sdist(row["name"], row["version"], **{key: row[key] for key in keys if key in row}, written=written)
        if row.get("damaged"):
            source = replace(source, data=source.data[:100])
        files.append(_file(row, replace(source, requires_python=None) if row.get("hides_python") else source))
    return files


def _file(row: Table, artifact: Artifact) -> File:
    artifact = replace(artifact, filename=row.get("filename", artifact.filename))
    uploaded = _noon(row.get("uploaded", date(2024, 1, 1)))
    return File(artifact, uploaded, row.get("yanked"), row.get("claimed_sha256"))


def _noon(day: date) -> datetime:
    return day if isinstance(day, datetime) else datetime.combine(day, time(12), timezone.utc)


def _channels(data: Table) -> dict[str, dict[str, dict[str, Table]]]:
    """Channel -> subdir -> file name -> row."""
    found: dict[str, dict[str, dict[str, Table]]] = {row["name"]: {} for row in data.get("served", ())}
    for name, subdir, filename, fields in _rows(data):
        found.setdefault(name, {}).setdefault(subdir, {})[filename] = fields
    return found


def _rows(data: Table) -> Iterator[tuple[str, str, str, Table]]:
    for row in data.get("set", ()):
        for subdir, filename, fields in _set(row["of"], tuple(row.get("pythons", (GOLDEN_PYTHON,)))):
            if fields["name"] not in row.get("without", ()):
                yield row.get("channel", "conda-forge"), subdir, filename, fields
    for row in data.get("row", ()):
        subdirs = row.get("subdir", "linux-64")
        for subdir in [subdirs] if isinstance(subdirs, str) else subdirs:
            made = Row(
                row["name"],
                row["version"],
                row.get("build", "0"),
                subdir,
                tuple(row.get("depends", ())),
                tuple(row.get("constrains", ())),
                None if row.get("undated") else _noon(row.get("built", date(2025, 6, 1))),
                row.get("build_number", 0),
            )
            yield row.get("channel", "conda-forge"), subdir, made.filename, made.fields()


@cache
def _set(name: str, pythons: tuple[str, ...]) -> tuple[tuple[str, str, Table], ...]:
    archives = getattr(conda_packages, name)(*pythons)
    return tuple((archive.subdir, archive.filename, archive.row()) for archive in archives)


def _written(folder: Path, rows: Mapping[str, Mapping[str, Table]]) -> CondaChannel:
    for subdir in {*rows, "noarch"}:
        write_rows(folder / subdir, subdir, rows.get(subdir, {}))
    return CondaChannel(folder, ())
