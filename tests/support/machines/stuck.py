"""Processes in state D, which no signal ends: they wait for a file system that does not answer.

A FUSE file system of which the server, this process, has answered INIT and nothing else. Closing its device ends every
wait. Source: the kernel's Documentation/filesystems/fuse.rst and include/uapi/linux/fuse.h. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.machines import NotRun

_DEVICE: Final = "/dev/fuse"
_INIT: Final = 26
_MNT_DETACH: Final = 2
#: fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, padding. fuse_out_header: len, error, unique.
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
#: fuse_init_out of 7.31: major, minor, max_readahead, flags, max_background and congestion_threshold, max_write, ...
_INITIALISED: Final = struct.pack("<IIIIHHIIHH32x", 7, 31, 0, 0, 12, 9, 65536, 1, 0, 0)
_BUFFER: Final = 1 << 20


@contextlib.contextmanager
def stuck_file(folder: Path) -> Iterator[Path]:
    """A file in `folder`: whoever looks at it waits in the kernel until the block ends.

    Raises:
        NotRun: no FUSE, or no right to mount.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise NotRun(f"{_DEVICE} can't be opened: {error.strerror}") from error
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
    # nosuid and nodev.
    if libc.mount(b"stuck", os.fsencode(folder), b"fuse", 6, options):
        os.close(device)
        raise NotRun(f"a FUSE file system can't be mounted: {os.strerror(ctypes.get_errno())}")
    ended, end = os.pipe()
    server = threading.Thread(target=_serve, args=(device, ended), daemon=True)
    server.start()
    try:
        yield folder / "file"
    finally:
        libc.umount2(os.fsencode(folder), _MNT_DETACH)
        os.close(end)
        server.join()
        os.close(ended)
        # Nobody else has it open: the kernel ends the connection, and every request that waits fails.
        os.close(device)


def _serve(device: int, ended: int) -> None:
    while device in select.select([device, ended], [], [])[0]:
        request = os.read(device, _BUFFER)
        _, opcode, unique, *_ = _IN.unpack_from(request)
        if opcode == _INIT:
            os.write(device, _OUT.pack(_OUT.size + len(_INITIALISED), 0, unique) + _INITIALISED)
