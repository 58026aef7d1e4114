"""The distributed checks over two nodes: what both find, and what one finds when the other is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.machines.netns import Namespace
from tests.support.machines.stack import at_loss
from tests.support.machines.suite import SuiteOutput, assert_nothing_left, make_request, processes, run
from tests.support.waits import wait_for

pytestmark = pytest.mark.stack

_PORT = 29517
_REACHED_S = 120
#: Until a node has said where it is.
_WORD_S = 2


@contextlib.contextmanager
def _running(
    python: Path, nodes: tuple[Namespace, Namespace], folder: Path, checks: list[str], environ: dict[str, str]
) -> Iterator[list[Future[SuiteOutput]]]:
    """The suite on both; when the block ends, nothing of it is left on either."""
    folders = [folder / str(rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        requested = [_order(checks, nodes, rank) for rank in range(2)]
        yield [
            pool.submit(run, python, requested[rank], folders[rank], environ=environ, before=nodes[rank].words)
            for rank in range(2)
        ]
    for each in folders:
        assert_nothing_left(each)


def _order(checks: list[str], nodes: tuple[Namespace, Namespace], rank: int) -> dict[str, object]:
    rendezvous = {"count": 2, "rank": rank, "rendezvous": f"{nodes[0].address}:{_PORT}"}
    return make_request(*checks, world_size=1, nodes=rendezvous)


def test_both_pass_and_are_equal_bit_by_bit(torch_29: Path, nodes: tuple[Namespace, Namespace], tmp_path: Path) -> None:
    with _running(torch_29, nodes, tmp_path, ["ddp", "fsdp"], {}) as running:
        both = [each.result() for each in running]
    for output in both:
        assert {name: each["status"] for name, each in output.results.items()} == {"ddp": "passed", "fsdp": "passed"}
        assert output.findings("ddp")["gloo, 2 ranks on 2 nodes: gradient against one process"]["ok"]
    one, other = ([each["digest"] for each in output.results["fsdp"]["fingerprints"]] for output in both)
    assert one == other


def test_a_node_that_dies_is_named_by_the_other(
    torch_29: Path, nodes: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    reached = tmp_path / "reached"
    fault = at_loss(tmp_path / "fault", f"import time; open({str(reached)!r}, 'w').close(); time.sleep(3600)")
    with _running(torch_29, nodes, tmp_path, ["ddp"], fault) as running:
        wait_for(reached.exists)
        time.sleep(_WORD_S)
        for each in processes(tmp_path / "1"):
            # What dies with a machine dies at once: also what would have had a word to say.
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        died = time.monotonic()
        output = running[0].result()
    assert time.monotonic() - died < 60
    assert output.results["ddp"]["status"] == "failed"
    assert "node 1 is lost: no response for 3.5 s, the last in the phase 'step 2'" in output.results["ddp"]["reason"]
    assert not running[1].result().results


def test_a_node_whose_link_is_down_is_named_by_the_other(
    torch_26: Path, nodes: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    reached, cut = tmp_path / "reached", tmp_path / "cut"
    fault = f"""
    import time
    open({str(reached)!r}, "w").close()
    while not os.path.exists({str(cut)!r}):
        time.sleep(0.05)
    """
    with _running(torch_26, nodes, tmp_path, ["ddp"], at_loss(tmp_path / "fault", fault)) as running:
        wait_for(reached.exists)
        time.sleep(_WORD_S)
        nodes[1].cut()
        cut.touch()
        one, other = (each.result().results["ddp"] for each in running)
    assert one["status"] == other["status"] == "failed"
    # Neither was ended at its limit: both noticed by themselves.
    assert one["cause"] == other["cause"] == "raised", (one["reason"], other["reason"])
    assert "node 1 is lost: no response for 3.5 s, the last in the phase 'step 2'" in one["reason"]
    assert "node 0 is lost: the rendezvous, which runs on it, does not respond any more" in other["reason"]


def test_a_node_that_never_comes_is_reported(
    torch_29: Path, nodes: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    output = run(torch_29, _order(["ddp"], nodes, 0), tmp_path, before=nodes[0].words)
    assert output.results["ddp"]["cause"] == "raised"
    assert "not every node joined within 60 s" in output.results["ddp"]["reason"]
    assert "1/2 clients joined" in output.results["ddp"]["reason"]
