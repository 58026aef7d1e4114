"""What a rank tells of its training: hashes for all the others to compare, and the numbers once for each machine."""

from __future__ import annotations

import json
from typing import Any

from envspec.conformance.ranks.process import Rank
from envspec.conformance.ranks.training import Trained, digest


def tell(torch: Any, rank: Rank, trained: Trained) -> None:
    """Tell it. The hashes go through the store: what compares ranks must not be the collectives that are tested."""
    mine = {"gradients": [digest(each) for each in trained.gradients], "parameters": digest(trained.parameters)}
    rank.store.set(f"digests/{rank.number}", json.dumps(mine))
    everyone = [json.loads(rank.store.get(f"digests/{each}")) for each in range(rank.world)]
    rank.words.value("digests", everyone)
    rank.words.value("norms", trained.norms)
    if rank.local == 0:
        torch.save([*trained.gradients, trained.parameters], rank.folder / "trained.pt")
