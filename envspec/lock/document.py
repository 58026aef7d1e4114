"""envspec.lock, the document of record: a Lock as TOML text, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from envspec import toml
from envspec.lock import writer
from envspec.lock.canonical import canonical
from envspec.lock.fields import Fields
from envspec.lock.head import FORMAT, NEEDS, DamagedLock, unseal
from envspec.lock.head import seal as _seal
from envspec.lock.writer import Value
from envspec.model import (
    Asker,
    BaseImage,
    Decision,
    Driver,
    GpuCode,
    Lock,
    Package,
    PinnedDigest,
    Platform,
    Python,
    Refusal,
    Resolution,
    Target,
    WheelFile,
)

_RESTORE: Final = "run `envspec lock SPEC` to write it again, or restore it from version control"


def dump(lock: Lock, files: Mapping[str, str]) -> str:
    """The text of envspec.lock.

    files: name -> SHA-256 (hexadecimal) of every other file that is written into the lock's folder.
    Raises:
        ValueError: a moment without a time zone, or a format that this envspec does not write.
    """
    if lock.format != FORMAT:
        raise ValueError(f"this envspec writes format {FORMAT}, not {lock.format}")
    lock = canonical(lock)
    head = writer.pairs(
        {
            "format": FORMAT,
            "needs": NEEDS,
            "name": lock.name,
            "input_sha256": lock.input_sha256,
            "as_of": lock.as_of,
            "facts": lock.facts,
        }
    )
    # Written even when empty: the head is read alone, by code that expects every key.
    head += f"gpus = [{', '.join(map(writer.string, lock.gpus))}]\n"
    head += writer.table("files", dict(sorted(files.items())))
    rest = writer.tables("package_as_of", [{"name": name, "as_of": as_of} for name, as_of in lock.package_as_of])
    rest += writer.tables("decision", [_decision(decision) for decision in lock.decisions])
    rest += writer.table("base_image", _base_image(lock.base_image)) if lock.base_image else ""
    rest += writer.table("driver", _driver(lock.driver)) if lock.driver else ""
    rest += writer.tables("gpu_code", [_gpu_code(code) for code in lock.gpu_code])
    rest += "".join(_resolution(resolution) for resolution in lock.resolutions)
    return _seal(head, rest)


def load(text: str, where: str) -> Lock:
    """The lock that `text` holds. where: how messages name it.

    Raises:
        DamagedLock, NewerFormat: see `head.unseal`; DamagedLock also names the key that is missing or wrong.
    """
    head, body = unseal(text.encode(), where)
    try:
        root = Fields(toml.loads(body.decode()))
        return Lock(
            format=head.format,
            name=head.name,
            input_sha256=head.input_sha256,
            as_of=head.as_of,
            resolutions=tuple(_read_resolution(item) for item in root.tables("resolution")),
            decisions=tuple(_read_decision(item) for item in root.tables("decision")),
            base_image=_read_base_image(image) if (image := root.table("base_image")) else None,
            driver=_read_driver(driver) if (driver := root.table("driver")) else None,
            gpu_code=tuple(_read_gpu_code(item) for item in root.tables("gpu_code")),
            gpus=head.gpus,
            facts=head.facts,
            package_as_of=tuple(
                (item.text("name"), item.required_moment("as_of")) for item in root.tables("package_as_of")
            ),
        )
    except ValueError as fault:
        raise DamagedLock(f"{where}: {fault}", hint=_RESTORE) from fault


def _name(platform: Platform | None) -> str | None:
    return platform.value if platform else None


def _decision(decision: Decision) -> dict[str, Value]:
    return {
        "what": decision.what,
        "platform": _name(decision.platform),
        "value": decision.value,
        "why": decision.why,
        "source": decision.source or None,
    }


def _read_decision(item: Fields) -> Decision:
    platform = item.optional_text("platform")
    return Decision(
        what=item.text("what"),
        value=item.text("value"),
        why=item.text("why"),
        source=item.text("source", ""),
        platform=None if platform is None else item.platform("platform"),
    )


def _base_image(image: BaseImage) -> dict[str, Value]:
    return {
        "repository": image.repository,
        "tag": image.tag,
        "cuda_release": image.cuda_release,
        "flavor": image.flavor,
        "os": image.os,
        "digests": [
            {
                "platform": pinned.platform.value,
                "digest": pinned.digest,
                "source": pinned.source,
                "kind": pinned.kind or None,
                "note": pinned.note or None,
            }
            for pinned in image.digests
        ],
    }


def _read_base_image(item: Fields) -> BaseImage:
    return BaseImage(
        repository=item.text("repository"),
        tag=item.text("tag"),
        cuda_release=item.optional_text("cuda_release"),
        flavor=item.optional_text("flavor"),
        os=item.text("os"),
        digests=tuple(
            PinnedDigest(
                platform=pinned.platform("platform"),
                digest=pinned.optional_text("digest"),
                source=pinned.text("source"),
                kind=pinned.text("kind", ""),
                note=pinned.text("note", ""),
            )
            for pinned in item.tables("digests")
        ),
    )


def _driver(driver: Driver) -> dict[str, Value]:
    return {
        "minimum": driver.minimum,
        "bundled": driver.bundled,
        "why": driver.why,
        "source": driver.source,
    }


def _read_driver(item: Fields) -> Driver:
    return Driver(
        minimum=item.text("minimum"),
        bundled=item.optional_text("bundled"),
        why=item.text("why"),
        source=item.text("source"),
    )


def _gpu_code(code: GpuCode) -> dict[str, Value]:
    return {
        "package": code.package,
        "version": code.version,
        "platform": code.platform.value,
        "variant": code.variant,
        "sm": code.sm,
        "ptx": code.ptx,
        "source": code.source,
    }


def _read_gpu_code(item: Fields) -> GpuCode:
    return GpuCode(
        platform=item.platform("platform"),
        package=item.text("package"),
        version=item.text("version"),
        variant=item.text("variant"),
        sm=item.texts("sm"),
        ptx=item.texts("ptx"),
        source=item.text("source"),
    )


def _resolution(resolution: Resolution) -> str:
    target = resolution.target
    python = target.python
    values: dict[str, Value] = {
        "platform": target.platform.value,
        "python": {
            "version": python.version,
            "source": python.source,
            "url": python.url,
            "sha256": python.sha256,
        },
        "glibc": _level(target.glibc),
        "macos": _level(target.macos),
        "warnings": resolution.warnings,
    }
    return writer.tables("resolution", [values]) + writer.tables(
        "resolution.package", [_package(package) for package in resolution.packages]
    )


def _read_resolution(item: Fields) -> Resolution:
    python = item.required_table("python")
    target = Target(
        platform=item.platform("platform"),
        python=Python(
            version=python.text("version"),
            source=python.text("source"),
            url=python.optional_text("url"),
            sha256=python.optional_text("sha256"),
        ),
        glibc=item.level("glibc"),
        macos=item.level("macos"),
    )
    return Resolution(
        target=target,
        packages=tuple(_read_package(package) for package in item.tables("package")),
        warnings=item.texts("warnings"),
    )


def _package(package: Package) -> dict[str, Value]:
    file = package.file
    newest: dict[str, Value] | None = None
    if package.newest:
        newest = {"version": package.newest.version, "why": package.newest.why}
    return {
        "name": package.name,
        "version": package.version,
        "extras": package.extras,
        "uploaded": package.uploaded,
        "file": {
            "index": file.index,
            "filename": file.filename,
            "size_bytes": file.size_bytes,
            "sha256": file.sha256,
            "url": file.url,
        },
        "askers": [{"name": asker.name, "requirement": asker.requirement} for asker in package.askers],
        "newest": newest,
    }


def _read_package(item: Fields) -> Package:
    file = item.required_table("file")
    newest = item.table("newest")
    return Package(
        name=item.text("name"),
        version=item.text("version"),
        file=WheelFile(
            index=file.text("index"),
            filename=file.text("filename"),
            sha256=file.text("sha256"),
            size_bytes=file.optional_number("size_bytes"),
            url=file.optional_text("url"),
        ),
        askers=tuple(Asker(asker.text("name"), asker.text("requirement")) for asker in item.tables("askers")),
        uploaded=item.moment("uploaded"),
        newest=Refusal(newest.text("version"), newest.text("why")) if newest else None,
        extras=item.texts("extras"),
    )


def _level(value: tuple[int, int] | None) -> str | None:
    return f"{value[0]}.{value[1]}" if value else None
