"""Graph networks: torch_geometric and its compiled extensions run, and a GCN learns a small made graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable

from envspec.conformance import imports
from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import Trial

#: Of a pair of nodes of the same class, and of different ones.
_JOINED, _APART = 0.15, 0.01
_NOISE = 0.7


def check(trial: Trial) -> None:
    """Raises NotRun where the stack has no torch_geometric."""
    torch = imports.torch(trial)
    if not trial.order.cuda:
        # Little is computed at a time: on a busy machine threads wait for each other longer than they work.
        torch.set_num_threads(1)
    imports.load(trial, "torch_geometric")
    for module, run in _EXTENSIONS.items():
        name = module.replace("torch_", "pytorch-").replace("_", "-")
        if imports.is_to_run(trial, module, name):
            extension = imports.load(trial, module, name)
            with trial.phase(f"{module}'s operator"):
                trial.exact(f"{module}'s operator", ok=run(torch, extension, trial.device))
        else:
            trial.not_run(f"{module}'s operator", imports.why_not(trial, module))
    _learn(trial, torch)
    _neighbours(trial, torch)


def _pyg_lib(torch: Any, pyg_lib: Any, device: str) -> bool:
    rows = torch.arange(12, dtype=torch.float32, device=device).view(6, 2)
    weights = torch.stack([torch.eye(2, device=device), 2 * torch.eye(2, device=device)])
    found = pyg_lib.ops.segment_matmul(rows, torch.tensor([0, 2, 6], device=device), weights)
    return bool(torch.equal(found, torch.cat([rows[:2], 2 * rows[2:]])))


def _scatter(torch: Any, torch_scatter: Any, device: str) -> bool:
    values = torch.arange(1, 7, dtype=torch.float32, device=device)
    found = torch_scatter.segment_csr(values, torch.tensor([0, 1, 4, 6], device=device), reduce="sum")
    return bool(found.tolist() == [1, 9, 11])


def _sparse(torch: Any, torch_sparse: Any, device: str) -> bool:
    row, col = torch.tensor([0, 1, 1], device=device), torch.tensor([1, 0, 1], device=device)
    matrix = torch_sparse.SparseTensor(row=row, col=col, value=torch.tensor([2.0, 3, 4], device=device))
    return bool(torch_sparse.matmul(matrix, torch.eye(2, device=device)).tolist() == [[0, 2], [3, 4]])


def _cluster(torch: Any, torch_cluster: Any, device: str) -> bool:
    points = torch.tensor([[0.0], [1.0], [10.0]], device=device)
    found = torch_cluster.knn(points, torch.tensor([[9.0], [0.2]], device=device), 1)
    return bool(found.tolist() == [[0, 1], [2, 0]])


def _spline(torch: Any, torch_spline_conv: Any, device: str) -> bool:
    at = torch.tensor([[0.0], [0.5], [1.0]], device=device)
    size, is_open = torch.tensor([3], device=device), torch.ones(1, dtype=torch.uint8, device=device)
    weights, _ = torch_spline_conv.spline_basis(at, size, is_open, 1)
    return bool(torch.equal(weights.sum(1), torch.ones(3, device=device)))


#: Exact: small integers, and sums of weights that are powers of two.
_EXTENSIONS: Mapping[str, Callable[[Any, Any, str], bool]] = {
    "pyg_lib": _pyg_lib,
    "torch_scatter": _scatter,
    "torch_sparse": _sparse,
    "torch_cluster": _cluster,
    "torch_spline_conv": _spline,
}


def _graph(torch: Any, seed: int) -> tuple[Any, Any, Any]:
    """(features, edges, classes) of a stochastic block model: a node alone says too little of its class."""
    made = torch.Generator().manual_seed(seed)
    count, kinds = SIZES["pyg.nodes"], SIZES["pyg.classes"]
    classes = torch.arange(count) % kinds
    same = classes[:, None] == classes[None, :]
    chance = torch.where(same, torch.tensor(_JOINED), torch.tensor(_APART))
    upper = torch.triu(torch.rand(count, count, generator=made) < chance, 1)
    edges = (upper | upper.T).nonzero().T.contiguous()
    features = torch.nn.functional.one_hot(classes, kinds) / 2
    return features + _NOISE * torch.randn(count, kinds, generator=made), edges, classes


def _learn(trial: Trial, torch: Any) -> None:
    from torch_geometric.nn import GCNConv  # type: ignore[import-not-found, unused-ignore]

    entropy = torch.nn.functional.cross_entropy
    with trial.phase("GCN"):
        features, edges, classes = (each.to(trial.device) for each in _graph(torch, trial.order.seed))
        kinds = SIZES["pyg.classes"]
        torch.manual_seed(trial.order.seed)
        near, far = GCNConv(kinds, 16).to(trial.device), GCNConv(16, kinds).to(trial.device)
        optimizer = torch.optim.Adam([*near.parameters(), *far.parameters()], lr=0.02)
        known = torch.arange(len(classes), device=trial.device) < len(classes) // 5
        losses = []
        for _ in range(SIZES["pyg.epochs"]):
            loss = entropy(far(near(features, edges).relu(), edges)[known], classes[known])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        with torch.no_grad():
            right = far(near(features, edges).relu(), edges).argmax(1) == classes
    trial.within("accuracy on nodes not trained on", float(right[~known].float().mean()), limit("pyg.accuracy"))
    trial.within("last loss to the first", losses[-1] / losses[0], limit("pyg.loss"))


def _neighbours(trial: Trial, torch: Any) -> None:
    """A loader of neighbourhoods: a batch begins with the nodes asked for, and has edges of the graph alone."""
    name = "NeighborLoader"
    if not any(imports.is_to_run(trial, each) for each in ("pyg_lib", "torch_sparse")):
        trial.not_run(name, "it needs pyg_lib or torch_sparse, and neither is in the stack")
        return
    from torch_geometric.data import Data  # type: ignore[import-not-found, unused-ignore]
    from torch_geometric.loader import NeighborLoader  # type: ignore[import-not-found, unused-ignore]

    with trial.phase(name):
        features, edges, classes = _graph(torch, trial.order.seed)
        loader = NeighborLoader(Data(x=features, edge_index=edges, y=classes), num_neighbors=[5, 5], batch_size=100)
        known = set(map(tuple, edges.T.tolist()))
        seen: list[int] = []
        strange = 0
        for batch in loader:
            seen += batch.n_id[: batch.batch_size].tolist()
            strange += len(set(map(tuple, batch.n_id[batch.edge_index].T.tolist())) - known)
    told = f"{len(seen)} of {len(classes)} nodes, {strange} edges that are none of the graph's"
    trial.exact(name, ok=seen == list(range(len(classes))) and not strange, told=told)
