"""A wheel with nothing in it but its metadata, for engines that fetch wheels only to read that.

Source: binary distribution format (PyPA specifications): METADATA, WHEEL and RECORD are what a wheel must hold.
"""

from __future__ import annotations

import io
import zipfile

from packaging.utils import parse_wheel_filename


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
