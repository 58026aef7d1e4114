"""NCCL as it is loaded: one version for all ranks, and the transports that its log names.

Lines of the log that are read, NCCL 2.21 to 2.28, each after `HOST:PID:TID [GPU] NCCL INFO `::

    Using network IB                                                  also Socket, or a plugin's name
    NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
    NET/Socket : Using [0]eth0:10.0.0.1<0>
    NET/IB : No device found.
    Failed to open libibverbs.so[.1]
    Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read                    also IPC, direct pointer, indirect/2[2]
    Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
    Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA            also [receive], and 0(3) with a proxy's rank

Sources: NCCL's `src/init.cc`, `src/debug.cc`, `src/misc/ibvsymbols.cc` and `src/transport/` (net.cc, net_ib.cc,
net_socket.cc, p2p.cc, shm.cc), releases 2.21.5 to 2.28.9; its user guide, "Environment Variables". Logs: nccl#1412,
nccl#1538, nccl#952, nccl-tests#166, nccl-tests#252. Read 2026-11.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envspec.conformance.distributed.launch import Launch, nccl_logs, rank_names
from envspec.conformance.events import CheckContext
from envspec.conformance.libraries import LIBRARIES
from envspec.conformance.text import counted

_NETWORK = re.compile(r"NCCL INFO Using network (.+)")
_DEVICES = re.compile(r"NCCL INFO NET/(\w+) : Using(.*)")
_IB_DEVICE = re.compile(r"([\w.-]+):\d+/\w+")
_INTERFACE = re.compile(r"\[\d+\]([^:\s]+):")
_WITHOUT_IB = re.compile(r"NCCL INFO (NET/IB : No device found|Failed to open libibverbs\.so)")
_CHANNEL = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (P2P|SHM|NET)(?:/(.*))?"
)
_SOCKET = "Socket"


class DifferentNccl(Exception):
    """Ranks have loaded different versions of NCCL."""


def version(torch: Any) -> str:
    """Of the NCCL in memory; of torch's build if NCCL is linked into torch itself."""
    return LIBRARIES["NCCL"].loaded() or ".".join(map(str, torch.cuda.nccl.version()))


def agree(store: Any, launch: Launch, rank: int, own: str) -> None:
    """Compare the versions of all ranks before the first of them calls NCCL: different ones hang or crash there.

    store: of torchrun's rendezvous. own: this rank's version.

    Raises:
        DifferentNccl: they differ.
    """
    store.set(f"nccl/{rank}", own)
    found = [store.get(f"nccl/{each}").decode() for each in range(launch.world)]
    if len(set(found)) > 1:
        raise DifferentNccl(different(found, launch))


def different(versions: Sequence[str], launch: Launch) -> str:
    """Which ranks, on which nodes, have which version. versions: by rank."""
    where: dict[str, dict[int, list[int]]] = {}
    for rank, each in enumerate(versions):
        where.setdefault(each, {}).setdefault(rank // launch.processes, []).append(rank)
    found = []
    for each, nodes in sorted(where.items()):
        names = []
        for node, ranks in nodes.items():
            name = rank_names(ranks)
            if launch.nodes.count > 1:
                name = f"node {node} ({name})"
            names.append(name)
        found.append(f"NCCL {each} at {', '.join(names)}")
    return (
        f"{'; '.join(found)}: all ranks must load the same one. Use the same lock or image on every node, and look for "
        "another libnccl.so on LD_LIBRARY_PATH and in LD_PRELOAD"
    )


@dataclass(frozen=True)
class NcclTransport:
    """What NCCL's logs name.

    networks: that NCCL chose. devices: network -> its devices. pairs: transport -> pairs of ranks, sender first.
    sending: the networks that connect pairs. without_ib: why the network IB is not used.
    """

    networks: Collection[str]
    devices: Mapping[str, Collection[str]]
    pairs: Mapping[str, Collection[tuple[int, int]]]
    sending: Collection[str]
    without_ib: Collection[str]

    @property
    def uses_sockets(self) -> bool:
        """NVLink between nodes leaves a chosen network unused."""
        return _SOCKET in (self.sending if self.pairs else self.networks)

    def __str__(self) -> str:
        pairs = [
            f"{transport} between {counted(len(found), 'pair')}" for transport, found in sorted(self.pairs.items())
        ]
        networks = []
        for name in self.networks:
            network = f"network {name}"
            if self.devices.get(name):
                network += f" ({', '.join(self.devices[name])})"
            networks.append(network)
        return "; ".join(filter(None, [", ".join(pairs), ", ".join(networks)]))


def read_logs(texts: Iterable[str]) -> NcclTransport:
    """What NCCL's logs of some ranks name."""
    networks: dict[str, None] = {}
    devices: dict[str, dict[str, None]] = {}
    pairs: dict[str, dict[tuple[int, int], None]] = {}
    sending: dict[str, None] = {}
    without_ib: dict[str, None] = {}
    for line in "\n".join(texts).splitlines():
        if found := _CHANNEL.search(line):
            sender, receiver, transport, path = int(found[1]), int(found[2]), found[3], found[4] or ""
            if transport == "NET":
                # A plugin's name may have spaces: `NET/AWS Libfabric/0/GDRDMA`.
                sending[re.split(r"/\d", path)[0]] = None
                if "/GDRDMA" in path:
                    transport = "NET/GDRDMA"
            pairs.setdefault(transport, {})[sender, receiver] = None
        elif found := _NETWORK.search(line):
            networks[found[1].strip()] = None
        elif found := _DEVICES.search(line):
            named = _INTERFACE if found[1] == _SOCKET else _IB_DEVICE
            devices.setdefault(found[1], {}).update(dict.fromkeys(named.findall(found[2].partition("; OOB")[0])))
        elif found := _WITHOUT_IB.search(line):
            without_ib[found[1]] = None
    return NcclTransport(networks, devices, pairs, sending, without_ib)


def rdma_ports(folder: Path = Path("/sys/class/infiniband")) -> list[str]:
    """Active RDMA ports: device, port and link layer.

    Source: the kernel's `Documentation/ABI/stable/sysfs-class-infiniband`.
    """
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        with contextlib.suppress(OSError):
            if (port / "state").read_text(encoding="ascii").startswith("4:"):
                layer = (port / "link_layer").read_text(encoding="ascii").strip()
                found.append(f"{port.parents[1].name} port {port.name} ({layer})")
    return found


def report(context: CheckContext, launch: Launch, folder: Path) -> None:
    """Report the transport of this node's ranks. folder: of the launch."""
    logs = nccl_logs(folder)
    chosen = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    judge(context, launch, read_logs(logs) if logs else None, rdma_ports(), chosen)


def judge(
    context: CheckContext,
    launch: Launch,
    transport: NcclTransport | None,
    ports: Sequence[str],
    variables: Mapping[str, str],
) -> None:
    """Report a transport; sockets between nodes with RDMA are a failure.

    transport: None without a log. ports: active RDMA ports of this machine. variables: NCCL's, that the user has set.
    """
    name = f"{launch.name}: transport"
    setting = ", ".join(f"{key}={value}" for key, value in sorted(variables.items()))
    if transport is None or not str(transport):
        what = "NCCL wrote no log" if transport is None else "NCCL's log names no network and no transport"
        if setting:
            what += f" (set: {setting})"
        context.not_run(name, what)
        return
    context.note(name, str(transport))
    if launch.nodes.count > 1 and ports:
        details = [str(transport), f"active RDMA ports: {', '.join(ports)}", *transport.without_ib]
        if setting:
            details.append(f"set: {setting}")
        context.exact(
            f"{launch.name}: NCCL uses RDMA between nodes",
            ok=not transport.uses_sockets,
            detail="; ".join(details),
            hint="NCCL needs /dev/infiniband and libibverbs.so.1 (Debian: libibverbs1, ibverbs-providers): install it, "
            "unset NCCL_IB_DISABLE and NCCL_NET, and compare NCCL_IB_HCA with the active ports",
        )
