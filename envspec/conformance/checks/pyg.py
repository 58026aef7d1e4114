"""Graph networks: torch_geometric runs, and a GCN learns a small synthetic graph."""

from __future__ import annotations

from typing import Any

from envspec.conformance.bounds import SIZES, limit
from envspec.conformance.events import CheckContext

#: Probability of an edge between nodes of the same class, and of different classes.
_SAME, _DIFFERENT = 0.15, 0.01
_NOISE = 0.7


def check(context: CheckContext) -> None:
    """Raises NotRun if the stack has no torch_geometric."""
    torch = context.load("torch")
    if not context.request.cuda:
        # On a busy machine threads would wait for each other longer than they compute.
        torch.set_num_threads(1)
    context.load("torch_geometric")
    _learn(context, torch)
    _neighbours(context, torch)


def _graph(torch: Any, seed: int) -> tuple[Any, Any, Any]:
    """(features, edges, classes) of a stochastic block model; a node's features alone do not show its class."""
    numbers = torch.Generator().manual_seed(seed)
    count, kinds = SIZES["pyg.nodes"], SIZES["pyg.classes"]
    classes = torch.arange(count) % kinds
    same = classes[:, None] == classes[None, :]
    chance = torch.where(same, torch.tensor(_SAME), torch.tensor(_DIFFERENT))
    upper = torch.triu(torch.rand(count, count, generator=numbers) < chance, 1)
    edges = (upper | upper.T).nonzero().T.contiguous()
    features = torch.nn.functional.one_hot(classes, kinds) / 2
    return features + _NOISE * torch.randn(count, kinds, generator=numbers), edges, classes


def _learn(context: CheckContext, torch: Any) -> None:
    from torch_geometric.nn import GCNConv  # type: ignore[import-not-found, unused-ignore]

    entropy = torch.nn.functional.cross_entropy
    with context.phase("GCN"):
        features, edges, classes = (each.to(context.device) for each in _graph(torch, context.request.seed))
        kinds = SIZES["pyg.classes"]
        torch.manual_seed(context.request.seed)
        near, far = GCNConv(kinds, 16).to(context.device), GCNConv(16, kinds).to(context.device)
        optimizer = torch.optim.Adam([*near.parameters(), *far.parameters()], lr=0.02)
        trained = torch.arange(len(classes), device=context.device) < len(classes) // 5
        losses = []
        for _ in range(SIZES["pyg.epochs"]):
            loss = entropy(far(near(features, edges).relu(), edges)[trained], classes[trained])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        with torch.no_grad():
            right = far(near(features, edges).relu(), edges).argmax(1) == classes
    context.within("accuracy on nodes not trained on", float(right[~trained].float().mean()), limit("pyg.accuracy"))
    context.within("last loss to the first", losses[-1] / losses[0], limit("pyg.loss"))


def _neighbours(context: CheckContext, torch: Any) -> None:
    """A loader of neighbourhoods: a batch begins with the requested nodes, and has only edges of the graph."""
    name = "NeighborLoader"
    if not any(context.has(each) for each in ("pyg_lib", "torch_sparse")):
        context.not_run(name, "it needs pyg_lib or torch_sparse, and the stack has neither")
        return
    from torch_geometric.data import Data  # type: ignore[import-not-found, unused-ignore]
    from torch_geometric.loader import NeighborLoader  # type: ignore[import-not-found, unused-ignore]

    with context.phase(name):
        features, edges, classes = _graph(torch, context.request.seed)
        loader = NeighborLoader(Data(x=features, edge_index=edges, y=classes), num_neighbors=[5, 5], batch_size=100)
        existing = set(map(tuple, edges.T.tolist()))
        visited: list[int] = []
        unknown = 0
        for batch in loader:
            visited += batch.n_id[: batch.batch_size].tolist()
            unknown += len(set(map(tuple, batch.n_id[batch.edge_index].T.tolist())) - existing)
    detail = f"{len(visited)} of {len(classes)} nodes, {unknown} edges that are not in the graph"
    context.exact(name, ok=visited == list(range(len(classes))) and not unknown, detail=detail)
