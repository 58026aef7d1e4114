"""A fleet's page: `python -m bench.fleet_page [NODES]` makes receipts of nodes with eight GPUs, three of them odd.

Prints the size of the page and how long it takes, with and without reading the receipts, the best of three.
`python -m bench.fleet_page NODES DIR` only writes the receipts.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from envspec.operations.fleet import read_fleet
from envspec.receipts.build import receipt
from envspec.receipts.model import Receipt, dump
from envspec.report import FLEET
from envspec.report.fleet import headline
from tests.support.builders.receipts import eight_gpus, known

_SLOW, _WRONG, _LOST = 17, 101, 150
_FAILING: Final = ("fsdp", "transformer")


def main(nodes: int = 200) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, nodes)
        print(f"{nodes} receipts of {(folder / 'node001/receipt.json').stat().st_size / 1e6:.2f} MB")
        read_s, made_s = [], []
        for _ in range(3):
            began = time.perf_counter()
            fleet = read_fleet(folder)
            read_s.append(time.perf_counter() - began)
            began = time.perf_counter()
            page = FLEET.render("html", fleet)
            made_s.append(time.perf_counter() - began)
        print(headline(fleet))
        print(f"read and compared: {min(read_s):.2f} s; the page: {min(made_s):.2f} s, {len(page) / 1e6:.3f} MB")


def _write(folder: Path, nodes: int) -> None:
    drawn = random.Random(1)
    names = [f"node{number:03d}" for number in range(1, nodes + 1)]
    for number, name in enumerate(names, 1):
        if number != _LOST:
            (folder / name).mkdir(parents=True)
            (folder / name / "receipt.json").write_text(dump(_node(number, drawn)), encoding="utf-8")
    (folder / "nodes.txt").write_text("\n".join(names), encoding="utf-8")


def _node(number: int, drawn: random.Random) -> Receipt:
    """Findings of each of eight GPUs, as of a check that runs on each."""
    document = eight_gpus(drawn.gauss(1, 0.01) * (0.8 if number == _SLOW else 1))
    for check in document["results"]:
        if check["check"] in _FAILING:
            whole = [each for each in check["findings"] if each.get("ok") is not False]
            check.update(status="passed", cause=None, reason="", hint="", log="", findings=whole)
        if check["check"] != "ddp":
            check["findings"] = [_on(gpu, each) for gpu in range(8) for each in check["findings"]]
        if check["check"] == "matmul" and number == _WRONG:
            check["fingerprints"][0]["digest"] = "99" * 32
    return receipt(document, known(*(each["check"] for each in document["results"])))


def _on(gpu: int, finding: dict[str, Any]) -> dict[str, Any]:
    return {**finding, "name": f"GPU {gpu}: {finding['name']}"}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _write(Path(sys.argv[2]), int(sys.argv[1]))
    else:
        main(*map(int, sys.argv[1:]))
