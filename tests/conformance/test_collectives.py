"""The integers that ranks exchange, and what NCCL's logs and versions say; no torch, no NCCL."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Final

import pytest

from envspec.conformance.bounds import SIZES
from envspec.conformance.distributed import nccl
from envspec.conformance.distributed.collectives import integer
from envspec.conformance.distributed.launch import Launch
from envspec.conformance.events import CheckContext
from envspec.conformance.request import Nodes, SuiteRequest

_LARGEST: Final = SIZES["distributed.largest_sum"]
_COUNT: Final = 997


@pytest.mark.parametrize("world", range(1, 65))
def test_every_sum_of_integers_is_exact_in_bf16(world: int) -> None:
    """bf16 has all integers up to 256, and no partial sum in any order is larger."""
    inputs = [[integer(index, rank, world) for rank in range(world)] for index in range(_COUNT)]
    assert max(abs(each) for row in inputs for each in row) <= _LARGEST // world
    assert max(sum(map(abs, row)) for row in inputs) <= _LARGEST
    assert min(map(min, inputs)) < 0 < max(map(max, inputs))


@pytest.mark.parametrize("world", [2, 8, 64])
@pytest.mark.parametrize("start", [0, 2**20 - 300, 2**26 - 300])
def test_an_integer_at_another_place_differs(world: int, start: int) -> None:
    """So that swapped chunks and shifted results are found: at most as many agree as of random numbers."""
    own = [integer(start + index, 1, world) for index in range(_COUNT)]
    values = 2 * (_LARGEST // world) + 1
    for shift in (1, 2, 128, 4096, 2**16, 2**20, 2**22, 2**25):
        other = [integer(start + index + shift, 1, world) for index in range(_COUNT)]
        assert sum(map(int.__eq__, own, other)) < _COUNT * (1 / values + 0.06), shift
    for rank in {0, 2, world - 1} - {1}:
        other = [integer(start + index, rank, world) for index in range(_COUNT)]
        assert sum(map(int.__eq__, own, other)) < _COUNT * (1 / values + 0.06), rank


def log(*lines: str) -> str:
    """A log of NCCL's. lines: after their prefix."""
    return "".join(f"node-0:4711:4799 [3] NCCL INFO {each}\n" for each in lines)


@pytest.mark.parametrize(
    ("text", "shown", "sockets"),
    [
        # 2.21.5, one machine with NVLink.
        (
            log(
                "NET/IB : No device found.",
                "NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0>",
                "Using non-device net plugin version 0",
                "Using network Socket",
                "Channel 00/24 :    0   1   2",
                "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read",
                "Channel 01/0 : 0[0] -> 1[1] via P2P/IPC/read",
                "Channel 00/0 : 1[1] -> 2[2] via P2P/direct pointer",
                "Channel 00/0 : 2[2] -> 0[0] via P2P/indirect/1[1]/read",
            ),
            "P2P between 3 pairs; network Socket (eth0, docker0)",
            False,
        ),
        # 2.21.5, merged ports.
        (
            log(
                "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [2]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
                "Using network IB",
                "Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0(3)/GDRDMA",
                "Channel 00/0 : 8[0] -> 1[1] [receive] via NET/IB/0",
            ),
            "NET between 1 pair, NET/GDRDMA between 1 pair; network IB (mlx5_0, mlx5_1, mlx5_2)",
            False,
        ),
        # 2.27.5, two machines without NVLink.
        (
            log(
                "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_bond_0:1/RoCE [RO]; OOB eth0:fe80::1%eth0<0>",
                "Initialized NET plugin IB",
                "Assigned NET plugin IB to comm",
                "Using network IB",
                "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
                "Channel 01 : 1[1] -> 0[0] via SHM/CE/direct",
                "Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA/Shared",
            ),
            "NET/GDRDMA between 1 pair, SHM between 2 pairs; network IB (mlx5_0, mlx5_bond_0)",
            False,
        ),
        # 2.28.9, a plugin.
        (
            log(
                "NET/OFI Selected provider is efa, fabric is efa (found 4 nics)",
                "Using network AWS Libfabric",
                "Channel 00/0 : 7[7] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA",
            ),
            "NET/GDRDMA between 1 pair; network AWS Libfabric",
            False,
        ),
        # A container without the library.
        (
            log(
                "Failed to open libibverbs.so[.1]",
                "NET/Socket : Using [0]eth0:10.0.0.1<0>",
                "Using network Socket",
                "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
            ),
            "NET between 1 pair; network Socket (eth0)",
            True,
        ),
        # With NCCL_DEBUG_SUBSYS=INIT of older releases: no channels.
        (log("Using network Socket"), "network Socket", True),
        # NVLink between machines: the network is not used.
        (
            log("Using network Socket", "Channel 00/0 : 0[0] -> 4[0] via P2P/MNNVL"),
            "P2P between 1 pair; network Socket",
            False,
        ),
        ("\nnode-0:4711:4799 [0] misc/socket.cc:483 NCCL WARN socketStartConnect\nhalf a li", "", False),
        ("", "", False),
    ],
)
def test_a_log_names_the_transport(text: str, shown: str, sockets: bool) -> None:
    transport = nccl.read_logs([text])
    assert (str(transport), transport.uses_sockets) == (shown, sockets)


def test_the_logs_of_ranks_are_joined() -> None:
    """A pair that both ends, and several channels, name counts once."""
    texts = [log(*(f"Channel 0{n}/0 : 0[0] -> 1[1] via P2P/CUMEM" for n in range(4)), "Using network IB")] * 2
    texts.append(log("Using network IB", "Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM/read"))
    assert str(nccl.read_logs(texts)) == "P2P between 2 pairs; network IB"


def _launch(nodes: int = 1) -> Launch:
    return Launch("nccl, 4 ranks", "ddp", "cuda", "nccl", 4 // nodes, 1, Nodes(nodes, 0, None))


def _judged(
    folder: Path, transport: nccl.NcclTransport | None, nodes: int = 2, **variables: str
) -> list[dict[str, Any]]:
    events = io.StringIO()
    context = CheckContext(SuiteRequest("cuda", ("ddp",)), folder, events)
    nccl.judge(context, _launch(nodes), transport, nccl.rdma_ports(folder), variables)
    found = [json.loads(line) for line in events.getvalue().splitlines()]
    return [{"hint": each["hints"]} if "hints" in each else each["findings"] for each in found]


def _port(folder: Path, device: str, state: str, layer: str) -> None:
    port = folder / device / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    (port / "link_layer").write_text(f"{layer}\n")


SOCKETS: Final = nccl.read_logs(
    [log("NET/IB : No device found.", "Using network Socket", "Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0")]
)
IB: Final = nccl.read_logs([log("Using network IB", "Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0")])


def test_sockets_between_nodes_with_rdma_fail(tmp_path: Path) -> None:
    _port(tmp_path, "mlx5_0", "4: ACTIVE", "InfiniBand")
    _port(tmp_path, "mlx5_1", "1: DOWN", "Ethernet")
    note, finding, hint = _judged(tmp_path, SOCKETS, NCCL_IB_DISABLE="1")
    assert (note["name"], note["kind"]) == ("nccl, 4 ranks: transport", "info")
    assert note["detail"] == "NET between 1 pair; network Socket"
    assert (finding["kind"], finding["ok"]) == ("exact", False)
    assert finding["detail"] == (
        "NET between 1 pair; network Socket; active RDMA ports: mlx5_0 port 1 (InfiniBand); "
        "NET/IB : No device found; set: NCCL_IB_DISABLE=1"
    )
    assert "libibverbs.so.1" in hint["hint"]
    assert [each["ok"] for each in _judged(tmp_path, IB)] == [None, True]


def test_sockets_are_right_on_one_node_and_without_rdma(tmp_path: Path) -> None:
    assert [each["kind"] for each in _judged(tmp_path, SOCKETS)] == ["info"]
    _port(tmp_path, "mlx5_0", "4: ACTIVE", "Ethernet")
    assert [each["kind"] for each in _judged(tmp_path, SOCKETS, nodes=1)] == ["info"]


def test_without_a_log_the_transport_is_not_run(tmp_path: Path) -> None:
    (found,) = _judged(tmp_path, None, NCCL_DEBUG_FILE="/tmp/log")
    assert (found["kind"], found["detail"]) == ("not run", "NCCL wrote no log (set: NCCL_DEBUG_FILE=/tmp/log)")
    (found,) = _judged(tmp_path, nccl.read_logs([""]))
    assert (found["kind"], found["detail"]) == ("not run", "NCCL's log names no network and no transport")


def test_different_versions_are_named_with_their_ranks() -> None:
    versions = ["2.27.5", "2.27.5", "2.27.5", "2.21.5"]
    assert nccl.different(versions, _launch()).startswith("NCCL 2.21.5 at rank 3; NCCL 2.27.5 at ranks 0, 1, 2: ")
    assert nccl.different(versions, _launch(2)).startswith(
        "NCCL 2.21.5 at node 1 (rank 3); NCCL 2.27.5 at node 0 (ranks 0, 1), node 1 (rank 2): all ranks"
    )
