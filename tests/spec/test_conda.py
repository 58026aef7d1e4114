"""[conda] as other stages see it."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone

import pytest

from envspec.models import Platform
from envspec.origins import channel_url
from envspec.spec import Conda, UndatedFiles, parse_spec
from envspec.spec.conda import (
    channel_of,
    name_of,
    preferred_record,
    read_channel,
    read_preferred_record,
)
from envspec.spec.errors import BadValue

NOW = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
SPEC = """[env]
name = "x"
python = "3.13"
platforms = ["linux-64", "osx-arm64"]

[conda]
channels = ["conda-forge", "https://me:word@conda.example.com/t/secret/own/"]
dependencies = ["ffmpeg"]

[conda.platform.linux-64]
dependencies = ["gcc_linux-64"]
virtual_packages = { __linux = "6.11" }

[conda.names]
msgpack-python = "MsgPack"
ffmpeg = []

[conda.virtual_packages]
__linux = "6.8"
__osx = "15.1"
"""


def conda(text: str) -> Conda | None:
    return parse_spec(text, "spec.toml", NOW).conda


def test_what_a_section_says_of_a_platform() -> None:
    found = conda(SPEC)
    assert found is not None
    assert found.dependencies_on(Platform.LINUX_64) == ("ffmpeg", "gcc_linux-64")
    assert found.dependencies_on(Platform.OSX_ARM64) == ("ffmpeg",)
    assert found.virtual_packages_on(Platform.LINUX_64) == {"__linux": "6.11"}
    assert found.virtual_packages_on(Platform.OSX_ARM64) == {"__osx": "15.1"}
    assert found.names == {"msgpack-python": ("msgpack",), "ffmpeg": ()}
    assert found.undated is UndatedFiles.REFUSE


def test_an_empty_section_is_one() -> None:
    head = SPEC.partition("[conda]")[0]
    assert conda(head) is None
    found = conda(head + "[conda]\n")
    assert found is not None
    assert (found.channels, found.dependencies, found.names) == (("conda-forge",), (), {})


@pytest.mark.parametrize(
    ("channel", "url"),
    [
        ("conda-forge", "https://conda.anaconda.org/conda-forge"),
        ("https://conda.anaconda.org/conda-forge/", "https://conda.anaconda.org/conda-forge"),
        ("HTTP://Conda.Example.com:8080/Own", "http://conda.example.com:8080/Own"),
        ("https://me:word@conda.example.com/get/t/secret/own", "https://conda.example.com/get/own"),
        ("https://me@conda.example.com", "https://conda.example.com"),
        ("file://localhost/srv/channel", "file:///srv/channel"),
        ("file:///t/one/channel", "file:///t/one/channel"),
    ],
)
def test_addresses_of_channels(channel: str, url: str) -> None:
    assert channel_url(read_channel(channel)) == url


def test_no_name_in_no_match_spec() -> None:
    with pytest.raises(ValueError, match="no match spec"):
        name_of(">=7")
    assert channel_of(">=7") is None


def test_a_preferred_record_is_one_version() -> None:
    # Builds of the channel `pytorch` have dots.
    build = "py3.11_cuda12.4_cudnn9.1.0_0"
    assert preferred_record(read_preferred_record(f"pytorch ==2.5.1 {build}")) == ("pytorch", "2.5.1", build)
    assert preferred_record(read_preferred_record("NumPy 2.3.1")) == ("numpy", "2.3.1", "")
    for text in ("numpy", "numpy 2.*", "numpy ==2.3.1 py*", "conda-forge::numpy ==2.3.1"):
        with pytest.raises(BadValue, match="is not one version"):
            read_preferred_record(text)


def test_reading_a_spec_without_match_specs_loads_no_solver() -> None:
    program = f"""
import sys
from datetime import datetime, timezone
from envspec.spec import json_schema, parse_spec
import envspec.resolve.conda.request
spec = parse_spec({SPEC.partition("[conda]")[0]!r}, "spec.toml", datetime(2026, 11, 20, tzinfo=timezone.utc))
json_schema()
print(spec.conda, sorted({{"rattler", "conda_lock"}} & set(sys.modules)))
"""
    message = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert message.stdout == "None []\n"
