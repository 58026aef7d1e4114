"""A wheel with nothing in it but its metadata: for engines that fetch wheels only to read that, and for what conda has.

Source: binary distribution format (PyPA specifications): METADATA, WHEEL and RECORD are what a wheel must hold.
"""

from __future__ import annotations

import io
import zipfile

from packaging.utils import parse_wheel_filename

from envspec.resolve.index.page import ListedFile
from envspec.resolve.provider import Provider
from envspec.resolve.requirements import declared, extras_of, is_of_extra


def stub_wheel(filename: str, metadata: bytes) -> bytes:
    """The bytes of such a wheel; `metadata` is its METADATA.

    Raises:
        InvalidWheelFilename: `filename` is no wheel's.
    """
    _, _, _, tags = parse_wheel_filename(filename)
    folder = "-".join(filename.split("-")[:2]) + ".dist-info"
    wheel = ["Wheel-Version: 1.0", "Generator: envspec", "Root-Is-Purelib: true"]
    wheel += sorted(f"Tag: {tag}" for tag in tags)
    files = {"METADATA": metadata, "WHEEL": ("\n".join(wheel) + "\n").encode()}
    record = [f"{folder}/{name},," for name in (*files, "RECORD")]
    files["RECORD"] = ("\n".join(record) + "\n").encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return out.getvalue()


def nothing_stated(name: str, version: str) -> bytes:
    """METADATA without requirements."""
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


def provided_file(provider: Provider) -> ListedFile:
    """The one wheel that a package from conda has in our index: any target loads it, and no hash is told of it."""
    filename = f"{provider.name.replace('-', '_')}-{provider.version}-py3-none-any.whl"
    return ListedFile(filename, filename, None, None, None, None, None, None)


def provided_metadata(provider: Provider, published: bytes) -> bytes:
    """The METADATA of that wheel: conda has seen to what the package needs, but not to what its extras do.

    published: the METADATA of the same version on its index, empty where there is none.
    """
    extras = [f"Provides-Extra: {extra}" for extra in extras_of(published)]
    needs = [f"Requires-Dist: {text}" for text in declared(published) if is_of_extra(text)]
    lines = ["Metadata-Version: 2.1", f"Name: {provider.name}", f"Version: {provider.version}", *extras, *needs]
    return ("\n".join(lines) + "\n").encode()
