"""Wheels of extensions whose label is in their file name alone: projects rename them after the build."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from envspec.structs import replace
from tests.support.builders.projects import File, day
from tests.support.builders.wheels import Artifact, wheel
from tests.support.servers.index import FRIENDLY, IndexServer
from tests.support.user import User

SERIES = f"cp{sys.version_info.major}{sys.version_info.minor}"


def renamed(label: str) -> Artifact:
    made = wheel("flash-attn", "2.8.3", requires=["torch"], tag=f"{SERIES}-{SERIES}-linux_x86_64")
    return replace(made, filename=made.filename.replace("2.8.3", f"2.8.3+{label}"))


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheel is for linux-64")
def test_a_wheel_renamed_after_its_build_is_locked_installed_and_verified(tmp_path: Path) -> None:
    files = [renamed(f"cu12torch{torch}cxx11abiTRUE") for torch in ("2.7", "2.8", "2.10")]
    torches = [wheel("torch", version) for version in ("2.7.0", "2.8.0")]
    with IndexServer([File(each, day("2025-09-01")) for each in (*files, *torches)], FRIENDLY) as index:
        user = User(tmp_path, index.url)
        user.writes(
            f'[env]\nname = "case"\npython = "{platform.python_version()}"\nplatforms = ["linux-64"]\n'
            'as_of = 2026-06-01T00:00:00Z\n\n[pip]\ndependencies = ["flash-attn", "torch"]\n\n[cuda]\n'
        )
        assert user.locks().status == 0
        exported = (tmp_path / "locks/case/requirements.linux-64.txt").read_text(encoding="utf-8")
        assert "flash-attn==2.8.3+cu12torch2.8cxx11abitrue" in exported and "torch==2.8.0" in exported
        # Locking again, online, keeps it: the pins of a lock have labels too.
        assert user.locks("--upgrade-package", "torch").status == 0
        prefix = str(tmp_path / "env")
        installed = user.runs("install", "locks/case", "--prefix", prefix, "--python", sys.executable)
        assert installed.status == 0, installed.stderr
        verified = user.runs("verify", "locks/case", "--prefix", prefix)
        assert verified.status == 0, verified.stderr
        # Another wheel of the release has another RECORD, or an installed file was changed: the version tells nothing.
        record = next((tmp_path / "env").glob("lib/python3.*/site-packages/flash_attn-2.8.3.dist-info/RECORD"))
        record.write_text(record.read_text(encoding="utf-8").replace("sha256=", "sha256=x"), encoding="utf-8")
        assert user.runs("verify", "locks/case", "--prefix", prefix).status == 8
