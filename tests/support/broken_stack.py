"""Stacks that compute wrongly: a fault that comes with Python's start, since the suite itself has no place for one.

A folder on PYTHONPATH holds a `sitecustomize.py` that waits for a module and, once it is loaded, puts another function
in the place of one of its own. Every process of the suite that uses that Python is hit, a rank of torchrun's too.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

_HOOK: Final = """
import importlib.abc
import importlib.util
import sys


def spoil({name}):
{body}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "{module}":
            return None
        # Who only asks whether it is there gets the fault all the same when it imports.
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        if found is None or found.loader is None:
            return found
        load = found.loader.exec_module

        def exec_module(module):
            load(module)
            spoil(module)

        found.loader.exec_module = exec_module
        return found


sys.meta_path.insert(0, Finder())
"""


def spoiled(folder: Path, body: str, module: str = "torch") -> dict[str, str]:
    """The variables under which every Python has a fault in a module.

    folder: made, for what Python finds first. body: statements that run when the module was imported, which they know
    by its last name (`torch.distributed` as `distributed`).
    """
    folder.mkdir(parents=True)
    hook = _HOOK.format(
        name=module.rpartition(".")[2], module=module, body=textwrap.indent(textwrap.dedent(body).strip(), "    ")
    )
    (folder / "sitecustomize.py").write_text(hook, encoding="utf-8")
    return {"PYTHONPATH": str(folder)}


def spoiled_product(folder: Path, body: str) -> dict[str, str]:
    """The variables under which `torch.matmul` and `@` of matrices in anything but fp64 are wrong.

    body: statements that know `left`, `right` and the true `product(left, right)`, and return a matrix.
    """
    return spoiled(
        folder,
        f"""
        product = torch.Tensor.__matmul__

        def spoil(left, right):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(left, right):
            is_hit = left.dim() == right.dim() == 2 and left.dtype != torch.float64
            return spoil(left, right) if is_hit else product(left, right)

        torch.Tensor.__matmul__ = torch.matmul = wrong
        """,
    )


def at_loss(folder: Path, body: str, *, rank: int = 1, step: int = 2) -> dict[str, str]:
    """The variables under which one rank of a distributed check does something before the loss of a step.

    body: statements, which know `torch` and `input`, the outputs of the model.
    """
    return spoiled(
        folder,
        f"""
        import os
        loss, steps = torch.nn.functional.mse_loss, []

        def act(input):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(input, *others, **named):
            steps.append(None)
            if os.environ.get("RANK") == "{rank}" and len(steps) == {step}:
                act(input)
            return loss(input, *others, **named)

        torch.nn.functional.mse_loss = wrong
        """,
    )


def spoiled_ddp(folder: Path, body: str) -> dict[str, str]:
    """The variables under which DistributedDataParallel has a fault.

    body: statements after its `__init__`, which know it as `replica`, and `dist`, that is `torch.distributed`.
    """
    return spoiled(
        folder,
        f"""
        import torch.distributed as dist
        begin = distributed.DistributedDataParallel.__init__

        def spoil(replica):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 12)}

        def wrong(replica, *given, **named):
            begin(replica, *given, **named)
            spoil(replica)

        distributed.DistributedDataParallel.__init__ = wrong
        """,
        "torch.nn.parallel.distributed",
    )
