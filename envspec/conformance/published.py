"""Bandwidths that others publish for a GPU and a fabric, with their sources: shown beside a measured one, never judged.

A value is of its own machines: the same GPU has another one behind a PCIe switch, in another shape of a virtual machine
or with another size of the message (aicr#1256; azurehpc-health-checks#142, #162). Rows were read 2026-11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from envspec.conformance.results import Driver, Gpu


class Fabric(Enum):
    """What connects the two ends."""

    NVLINK = "NVLink"
    PCIE = "PCIe"
    NETWORK = "network"


class Transfer(Enum):
    """What is measured: pinned memory to a GPU or back, one GPU to another, or the bus bandwidth of a collective."""

    HOST = "host"
    PEER = "peer"
    ALL_REDUCE = "all-reduce"


@dataclass(frozen=True)
class Published:
    """gpu: matches its whole name. value: GB/s, decimal."""

    transfer: Transfer
    gpu: str
    fabric: Fabric
    value: float
    source: str


_H100, _H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
_NHC = "Azure NHC"
_AICR = "NVIDIA aicr, nccl-all-reduce-bw, which accepts 0.9 of it"
PUBLISHED = (
    *(
        Published(transfer, gpu, fabric, value, f"{_NHC}, check_gpu_bw 48 335 of {machine}")
        for gpu, machine in ((_H100, "nd96isr_h100_v5"), (_H200, "nd96isr_h200_v5"))
        for transfer, fabric, value in ((Transfer.HOST, Fabric.PCIE, 48), (Transfer.PEER, Fabric.NVLINK, 335))
    ),
    Published(Transfer.ALL_REDUCE, _H100, Fabric.NVLINK, 460, f"{_NHC}, nd96isr_h100_v5, 8 GPUs, 16 GB"),
    Published(Transfer.ALL_REDUCE, _H200, Fabric.NVLINK, 431, f"{_NHC}, nd96isr_h200_v5, 8 GPUs, 16 GB"),
    Published(Transfer.ALL_REDUCE, _H100, Fabric.NETWORK, 300, f"{_AICR}, EKS and GKE"),
    Published(Transfer.ALL_REDUCE, _H100, Fabric.NETWORK, 150, f"{_AICR}, AKS"),
    Published(Transfer.ALL_REDUCE, r".*GB200\b.*", Fabric.NVLINK, 500, f"{_AICR}, NVLS"),
    Published(Transfer.ALL_REDUCE, r".*GB300\b.*", Fabric.NVLINK, 700, f"{_AICR}, NVLS"),
    Published(Transfer.ALL_REDUCE, r".*GB300\b.*", Fabric.NETWORK, 40, f"{_AICR}, NET"),
    Published(Transfer.ALL_REDUCE, r".*VR200\b.*", Fabric.NVLINK, 600, f"{_AICR}, NVLS"),
)


def published(transfer: Transfer, gpu: str, fabric: Fabric | None) -> str:
    """The rows for a GPU's name on a fabric: `published, not judged: 48 GB/s (source)`; empty if there is none."""
    rows = [
        f"{each.value:g} GB/s ({each.source})"
        for each in PUBLISHED
        if each.transfer is transfer and each.fabric is fabric and re.fullmatch(each.gpu, gpu)
    ]
    return f"published, not judged: {'; '.join(rows)}" if rows else ""


def connection(driver: Driver | None, one: Gpu, other: Gpu) -> str:
    """How two GPUs are connected, as in the topology: `NV18`, `PHB`; empty if NVML does not show it."""
    boards = driver.boards if driver else ()
    ends = sorted(board.index for gpu in (one, other) for board in boards if board.pci == gpu.pci)
    return driver.topology.get("-".join(map(str, ends)), "") if driver else ""


def fabric_of(how: str) -> Fabric | None:
    """The fabric of a connection; None if it is unknown."""
    if not how:
        return None
    return Fabric.NVLINK if how.startswith("NV") else Fabric.PCIE
