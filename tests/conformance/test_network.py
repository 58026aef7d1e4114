"""The interface that leads to where ranks meet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envspec.conformance.distributed import launch
from tests.support.machines import netns
from tests.support.machines.netns import Namespace


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_no_other_machine_is_reached_by(host: str) -> None:
    assert launch.interface_towards(host, 29500) == ""


@pytest.mark.parametrize("address", ["10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"])
def test_the_interface_is_the_one_that_leads_there(nodes: tuple[Namespace, Namespace], address: str) -> None:
    """Also towards this machine's own address, where the rendezvous is on it."""
    requested = (
        f"from envspec.conformance.distributed import launch; print(launch.interface_towards({address!r}, 29500))"
    )
    command = [*nodes[0].words, sys.executable, "-c", requested]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == netns.LINK
