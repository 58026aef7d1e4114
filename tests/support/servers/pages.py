"""Project pages in HTML (PEP 503, 592, 658) and JSON (PEP 691, 700, 714), from values alone."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from urllib.parse import quote

from envspec.structs import replace
from tests.support.builders.projects import Dialect, File, Hashes, Hrefs, MetadataFiles, Pages, Sizes, Times

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "text/html; charset=utf-8"


def project_page(name: str, files: Sequence[File], dialect: Dialect, accept: str, root: str) -> tuple[str, bytes]:
    """The content type and body of one project's page.

    accept: the request's Accept header. root: the server's own address, `http://127.0.0.1:PORT`.
    """
    asked_json = "json" in accept
    if dialect.pages is Pages.JSON or (dialect.pages is Pages.BY_ACCEPT and asked_json):
        return JSON_TYPE, _json(name, files, dialect, root)
    if dialect.pages is Pages.HTML_DATED_BY_ACCEPT and not asked_json:
        return HTML_TYPE, _html(name, files, replace(dialect, times=Times.HIDDEN), root)
    return HTML_TYPE, _html(name, files, dialect, root)


def root_page(names: Iterable[str], dialect: Dialect, accept: str) -> tuple[str, bytes]:
    """The content type and body of the list of projects."""
    if dialect.pages is Pages.JSON or (dialect.pages is Pages.BY_ACCEPT and "json" in accept):
        listed = [{"name": name} for name in sorted(names)]
        return JSON_TYPE, json.dumps({"meta": {"api-version": "1.1"}, "projects": listed}).encode()
    links = "".join(f'<a href="{name}/">{name}</a><br/>\n' for name in sorted(names))
    return HTML_TYPE, f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n".encode()


def links_page(files: Sequence[File]) -> tuple[str, bytes]:
    """The content type and body of a page with links to all files: no hash, no time."""
    links = "".join(f'<a href=".{file_path(file)}">{html.escape(file.filename)}</a><br>\n' for file in files)
    return HTML_TYPE, f"<!DOCTYPE html>\n<html>\n<body>\n{links}</body>\n</html>\n".encode()


def file_path(file: File) -> str:
    """Where a file lies on the server, quoted: `/files/NAME/FILENAME`."""
    return f"/files/{file.name}/{quote(file.filename)}"


def _href(file: File, dialect: Dialect, root: str) -> str:
    path = file_path(file)
    prefix = {Hrefs.RELATIVE: "../..", Hrefs.ROOTED: "", Hrefs.ABSOLUTE: root, Hrefs.BASE: ""}[dialect.hrefs]
    return prefix + path


def _digest(file: File, kind: Hashes) -> str:
    return file.sha256 if kind is Hashes.SHA256 else hashlib.md5(file.artifact.data).hexdigest()


def _html(name: str, files: Sequence[File], dialect: Dialect, root: str) -> bytes:
    base = f'<base href="{root}/files/">' if dialect.hrefs is Hrefs.BASE else ""
    links = "".join(_anchor(file, dialect, root) for file in files)
    return (
        f'<!DOCTYPE html>\n<html>\n<head><meta name="pypi:repository-version" content="1.1">{base}'
        f"<title>Links for {name}</title></head>\n<body>\n<h1>Links for {name}</h1>\n{links}</body>\n</html>\n"
    ).encode()


def _anchor(file: File, dialect: Dialect, root: str) -> str:
    href = _href(file, dialect, root)
    if dialect.hrefs is Hrefs.BASE:
        href = href.removeprefix("/files/")
    if dialect.hashes is not Hashes.NONE:
        href += f"#{dialect.hashes.value}={_digest(file, dialect.hashes)}"
    attributes = {"href": href, **_html_metadata(file, dialect)}
    if file.artifact.requires_python:
        attributes["data-requires-python"] = file.artifact.requires_python
    if file.yanked is not None:
        attributes["data-yanked"] = file.yanked
    if dialect.times is Times.SHOWN and file.uploaded is not None:
        attributes["data-upload-time"] = _moment(file.uploaded)
    text = " ".join(f'{key}="{html.escape(value)}"' for key, value in attributes.items())
    return f"<a {text}>{html.escape(file.filename)}</a><br/>\n"


def _html_metadata(file: File, dialect: Dialect) -> dict[str, str]:
    message = f"sha256={hashlib.sha256(file.artifact.metadata).hexdigest()}"
    if not file.artifact.is_wheel:
        return {}
    return {
        MetadataFiles.CORE: {"data-core-metadata": message, "data-dist-info-metadata": message},
        MetadataFiles.DIST_INFO: {"data-dist-info-metadata": message},
        MetadataFiles.TRUE: {"data-core-metadata": "true"},
        MetadataFiles.MISSING: {"data-core-metadata": message},
    }.get(dialect.metadata, {})


def _json(name: str, files: Sequence[File], dialect: Dialect, root: str) -> bytes:
    document = {
        "meta": {"api-version": "1.1"},
        "name": name,
        "versions": sorted({file.artifact.version for file in files}),
        "files": [_json_file(file, dialect, root) for file in files],
    }
    return json.dumps(document).encode()


def _json_file(file: File, dialect: Dialect, root: str) -> dict[str, object]:
    row: dict[str, object] = {"filename": file.filename, "url": _href(file, dialect, root)}
    row["hashes"] = {} if dialect.hashes is Hashes.NONE else {dialect.hashes.value: _digest(file, dialect.hashes)}
    row["requires-python"] = file.artifact.requires_python
    row["yanked"] = False if file.yanked is None else (file.yanked or True)
    row.update(_json_metadata(file, dialect))
    if dialect.sizes is Sizes.SHOWN:
        row["size"] = file.artifact.size_bytes
    if dialect.times is Times.SHOWN and file.uploaded is not None:
        row["upload-time"] = _moment(file.uploaded)
    return row


def _json_metadata(file: File, dialect: Dialect) -> dict[str, object]:
    message = {"sha256": hashlib.sha256(file.artifact.metadata).hexdigest()}
    if not file.artifact.is_wheel:
        return {}
    announced: dict[MetadataFiles, dict[str, object]] = {
        MetadataFiles.CORE: {"core-metadata": message, "data-dist-info-metadata": message},
        MetadataFiles.DIST_INFO: {"dist-info-metadata": message},
        MetadataFiles.TRUE: {"core-metadata": True},
        MetadataFiles.MISSING: {"core-metadata": message},
    }
    return announced.get(dialect.metadata, {"core-metadata": False})


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
