"""What `envspec run` does once the image is in the engine: `python -m tests.support.machines.run_container JSON`.

JSON: image, command, and what differs from the defaults: work, uid, gid, groups, devices, mounts, ports, gpus, cuda,
services (name and port of each, which are started beside the command).
"""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from envspec.cli import terminal
from envspec.engine.client import open_engine
from envspec.engine.container import (
    ContainerOptions,
    Gpus,
    HostFolders,
    Mount,
    MountAccess,
    Port,
    StartMode,
    Terminal,
    User,
    container_settings,
)
from envspec.engine.run import Streams, run
from envspec.errors import EnvspecError
from envspec.io.cache import JsonCache
from envspec.lockfile.header import FORMAT
from envspec.models import Driver, ImageSettings, Lock, Service

DRIVER = Driver("570.26", None, (), "")


def lock_of(*services: Service, cuda: bool = False) -> Lock:
    """A lock without packages."""
    return Lock(
        format=FORMAT,
        name="tiny-1.0",
        input_sha256="0" * 64,
        as_of=datetime(2026, 11, 1, tzinfo=timezone.utc),
        resolutions=(),
        decisions=(),
        base_image=None,
        driver=DRIVER if cuda else None,
        gpu_code=(),
        image=ImageSettings(services=services),
    )


def main(asked: dict[str, Any]) -> int:
    tty = sys.stdin.isatty() and sys.stdout.isatty()
    options = ContainerOptions(
        command=tuple(asked["command"]),
        start=StartMode.SERVICES if "services" in asked else StartMode.COMMAND,
        gpus=Gpus(asked["gpus"]) if "gpus" in asked else Gpus.AS_LOCKED,
        devices=tuple(asked.get("devices", ())),
        mounts=tuple(Mount(source, target, MountAccess(access)) for source, target, access in asked.get("mounts", ())),
        ports=tuple(Port(*each) for each in asked.get("ports", ())),
        terminal=Terminal.TTY if tty else Terminal.PIPES,
        stdin=True,
    )
    user = User("jane", asked.get("uid", 1234), asked.get("gid", 1235), tuple(asked.get("groups", ())))
    lock = lock_of(*(Service(*each) for each in asked.get("services", ())), cuda=asked.get("cuda", False))
    with open_engine(os.environ) as engine:
        settings = container_settings(lock, user, engine.facts, HostFolders(work=asked.get("work")), options)
        streams = Streams(sys.stdin.buffer, sys.stdout.buffer, sys.stderr.buffer)
        with TemporaryDirectory() as cache:
            return run(engine, asked["image"], settings, streams, terminal.report, JsonCache(Path(cache)))


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except EnvspecError as error:
        terminal.report(f"error: {error}")
        sys.exit(error.exit_code)
