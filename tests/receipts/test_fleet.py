"""Receipts of many nodes: which of them is odd, in what, and what to do about it."""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envspec.receipts.build import receipt
from envspec.receipts.fleet import Fleet, FleetNode, NodeVerdict, fleet, hostlist
from envspec.receipts.model import Baseline, BaselineRow, Receipt, Verdict
from envspec.report import FLEET
from envspec.report.fleet import drain_commands
from envspec.structs import replace
from tests.support.builders.receipts import check, exact, fingerprint, info, known, machine, not_run, results

NODES: Final = tuple(f"node{number:03d}" for number in range(1, 13))


def run(
    *, bf16: Sequence[float] = (700.0, 701.0), digest: str = "11", status: str = "passed", driver: str = "570.124.06"
) -> Receipt:
    """A receipt of a node. bf16: TFLOP/s of each GPU."""
    findings = [info(f"GPU {gpu}: bf16", rate, "TFLOP/s") for gpu, rate in enumerate(bf16)]
    failed = {"status": "failed", "cause": "found", "reason": "GPU 1: no remapping pending: 1"}
    checks = [
        check("matmul", findings=[exact("integers"), *findings], fingerprints=[fingerprint("integers", digest * 32)]),
        check("health", **(failed if status == "failed" else {"status": status, "reason": "no NVML"})),
    ]
    document = results(*checks, device="cuda", machine={**machine("cuda", gpus=len(bf16)), "driver": driver})
    return receipt(document, known("matmul", "health"))


def nodes(**others: FleetNode) -> list[FleetNode]:
    """Twelve equal nodes, but for those that are given by name."""
    return [others.get(name, FleetNode(name, run())) for name in NODES]


def node(name: str, **more: Any) -> dict[str, FleetNode]:
    return {name: FleetNode(name, run(**more))}


def odd(found: Fleet) -> dict[str, tuple[NodeVerdict, str]]:
    return {each.name: (each.verdict, each.reasons[0]) for each in found.nodes if each.verdict is not NodeVerdict.OK}


def test_equal_nodes_have_no_odd_one() -> None:
    found = fleet(nodes())
    assert (
        odd(found) == {}
        and found.verdict is Verdict.PASSED
        and not (found.odd or found.differences or found.shared or found.few)
    )


@pytest.mark.parametrize(
    ("other", "verdict", "words"),
    [
        ({"digest": "99"}, NodeVerdict.DRAIN, "matmul: integers: computes other results than most nodes"),
        ({"status": "failed"}, NodeVerdict.DRAIN, "health: GPU 1: no remapping pending: 1"),
        ({"bf16": (700.0, 560.0)}, NodeVerdict.WATCH, "matmul: bf16, on GPU 1 is 20 % below the median"),
        ({"driver": "550.54.15"}, NodeVerdict.WATCH, "driver: 550.54.15, most have 570.124.06"),
        ({"status": "not run"}, NodeVerdict.WATCH, "health: not run: no NVML"),
        ({"bf16": (700.0,)}, NodeVerdict.WATCH, "kind of machine: NVIDIA H100 80GB HBM3; world size 1, most"),
    ],
)
def test_one_node_that_differs(other: dict[str, Any], verdict: NodeVerdict, words: str) -> None:
    found = odd(fleet(nodes(**node("node007", **other))))
    assert set(found) == {"node007"}
    assert found["node007"][0] is verdict and found["node007"][1].startswith(words)


def test_a_node_that_is_lost_is_drained() -> None:
    found = fleet(nodes(node003=FleetNode("node003", None, "NODE_FAIL: NodeDown")))
    assert odd(found) == {"node003": (NodeVerdict.DRAIN, "lost: NODE_FAIL: NodeDown")}
    assert found.nodes[0].name == "node003" and found.verdict is Verdict.FAILED
    partial = fleet(nodes(node003=FleetNode("node003", run(), "NODE_FAIL: NodeDown")))
    assert odd(partial) == odd(found)


def test_what_fails_on_all_nodes_is_no_fault_of_one() -> None:
    found = fleet(FleetNode(name, run(status="failed")) for name in NODES)
    assert odd(found) == {} and found.verdict is Verdict.FAILED
    assert found.shared == ("health fails on each node: GPU 1: no remapping pending: 1",)
    assert "12 nodes: the stack fails on all of them" in FLEET.render("text", found)


def test_what_fails_with_other_nodes() -> None:
    bad, good = run(status="failed"), run()
    some = fleet(FleetNode(name, good, together=bad if name == "node002" else good) for name in NODES)
    assert odd(some) == {"node002": (NodeVerdict.WATCH, "with the others: health: GPU 1: no remapping pending: 1")}
    all_of_them = fleet(FleetNode(name, good, together=bad) for name in NODES)
    assert odd(all_of_them) == {} and "with the others, on each node" in all_of_them.shared[0]
    lost = fleet(FleetNode(name, good, together_lost="TIMEOUT" if name == "node002" else "") for name in NODES)
    assert odd(lost) == {"node002": (NodeVerdict.WATCH, "with the others: lost: TIMEOUT")}


def made_nodes(usual: Receipt, **others: Receipt) -> list[FleetNode]:
    """Four nodes with an equal receipt, and those that are given by name."""
    receipts = {**dict.fromkeys(NODES[:4], usual), **others}
    return [FleetNode(name, each) for name, each in receipts.items()]


def one(*findings: dict[str, Any], envspec: str = "0.1.0", digest: str = "11", **more: Any) -> Receipt:
    """A receipt of the check `matmul`. more: of its result."""
    fingerprints = [fingerprint("integers", digest * 32)]
    row = check("matmul", findings=list(findings), fingerprints=fingerprints, **more)
    return receipt(results(row, device="cuda"), known("matmul", envspec=envspec))


def rate(value: float = 700.0, spread: float = 0.01, name: str = "bf16") -> dict[str, Any]:
    return info(name, value, "TFLOP/s", spread=spread)


def peak(count: int) -> dict[str, Any]:
    return {"peak": {"allocated_bytes": count, "reserved_bytes": None, "host_bytes": None}}


@pytest.mark.parametrize(
    ("usual", "other", "words"),
    [
        (one(rate()), one(rate(300.0, 0.9)), "matmul: bf16: not compared: its times were too far apart"),
        (one(rate()), one(), "matmul: bf16: not compared: not measured"),
        (
            one(*(rate(name=f"GPU {gpu}: bf16") for gpu in range(8))),
            one(*(rate(name=f"GPU {gpu}: bf16") for gpu in range(7))),
            "matmul: bf16: not compared: 7 of 8 rates were measured",
        ),
        (one(exact("fp8")), one(not_run("fp8", "no kernel")), "matmul: fp8: not run: no kernel"),
        (one(**peak(10**9)), one(**peak(2 * 10**9)), "matmul: allocated on the device is 100 % above the median"),
    ],
    ids=["disturbed", "missing", "of one GPU", "a part", "memory"],
)
def test_a_node_that_is_not_compared_or_worse_is_watched(usual: Receipt, other: Receipt, words: str) -> None:
    found = odd(fleet(made_nodes(usual, other=other)))
    assert set(found) == {"other"}
    assert found["other"][0] is NodeVerdict.WATCH and found["other"][1].startswith(words)


def test_what_is_not_run_anywhere_is_no_difference() -> None:
    assert odd(fleet(made_nodes(one(not_run("fp4", "no unit"))))) == {}


def test_results_of_other_inputs_are_not_compared() -> None:
    """Another version of the suite has other sizes, and so other digests."""
    newer = one(envspec="0.2.0", digest="22")
    assert odd(fleet(made_nodes(one(), new1=newer, new2=newer))) == {}
    assert set(odd(fleet(made_nodes(one(), new1=newer, new2=newer, wrong=one(digest="99"))))) == {"wrong"}


def test_a_failed_run_is_drained_whatever_the_reason() -> None:
    """Numbers that are worse than a baseline's fail a run in which each check passed."""
    row = BaselineRow(
        check="matmul", name="bf16", unit="TFLOP/s", recorded=10, now=7, change=-0.3, tolerance=0.1, is_worse=True
    )
    baseline = Baseline(lock="", made_at=one(rate()).made_at, machine="", rows=(row,))
    worse = one(rate()).model_copy(update={"verdict": Verdict.FAILED, "baseline": baseline})
    why = "matmul: bf16 is 30 % worse than the baseline's"
    assert odd(fleet(made_nodes(one(rate()), worse=worse))) == {"worse": (NodeVerdict.DRAIN, why)}
    unknown = worse.model_copy(update={"reasons": ()})
    assert set(odd(fleet(made_nodes(one(rate()), unknown=unknown)))) == {"unknown"}
    foreign = one(rate()).model_copy(update={"verdict": Verdict.FAILED, "reasons": ()})
    without = (NodeVerdict.DRAIN, "its verdict is failed, without a reason")
    assert odd(fleet(made_nodes(one(rate()), foreign=foreign))) == {"foreign": without}


def test_a_fleet_on_which_nothing_ran_is_not_known() -> None:
    found = fleet(made_nodes(one(status="not run", reason="no GPU")))
    assert found.verdict is Verdict.NOT_KNOWN and found.not_known == NODES[:4] and not found.shared
    assert {each.verdict for each in found.nodes} == {NodeVerdict.WATCH}


def test_a_node_that_ran_out_of_time_is_watched() -> None:
    late = one(status="not known", cause="ran out of time", reason="ran out of time")
    found = fleet(made_nodes(one(), other=late))
    assert odd(found)["other"] == (NodeVerdict.WATCH, "not known: matmul ran out of time")
    assert (found.verdict, found.not_known) == (Verdict.NOT_KNOWN, ("other",))


def test_a_node_on_which_the_stacks_failure_did_not_run_changes_nothing() -> None:
    found = fleet([*(FleetNode(name, run(status="failed")) for name in NODES), FleetNode("x", run(status="not run"))])
    assert len(found.shared) == 1 and not found.of(NodeVerdict.DRAIN)


def test_what_passes_on_one_node_is_no_failure_of_the_stack() -> None:
    found = fleet([*(FleetNode(name, run(status="failed")) for name in NODES), FleetNode("x", run())])
    assert found.shared == () and len(found.of(NodeVerdict.DRAIN)) == len(NODES)


def test_several_nodes_that_lost_a_gpu_are_watched() -> None:
    lesser = {**node("node002", bf16=(700.0,)), **node("node005", bf16=(700.0,))}
    assert set(odd(fleet(nodes(**lesser)))) == {"node002", "node005"}


def test_few_nodes_are_compared_by_tolerances() -> None:
    """Of two nodes neither is an outlier by its deviations; a fifth less is more than any tolerance."""
    found = fleet([FleetNode("a", run()), FleetNode("b", run(bf16=(560.0, 560.0)))])
    assert set(odd(found)) == {"b"} and len(found.few) == 1
    assert found.odd[0].deviations is None


def test_without_a_majority_all_of_them_are_in_question() -> None:
    found = fleet(FleetNode(name, run(digest=digest)) for name, digest in (("a", "11"), ("b", "99")))
    assert set(odd(found)) == {"a", "b"}
    assert {each.reasons[0] for each in found.nodes} == {"matmul: integers: nodes compute different results"}


def test_a_wide_fleet_has_wide_limits() -> None:
    """The rates of these nodes vary by more than the tolerance: only what is far from all of them is odd."""
    drawn = random.Random(3)
    rates = [drawn.gauss(700, 35) for _ in NODES]
    found = fleet(FleetNode(name, run(bf16=(rate, rate))) for name, rate in zip(NODES, rates, strict=True))
    assert found.odd == ()
    rates[4] = 300.0
    found = fleet(FleetNode(name, run(bf16=(rate, rate))) for name, rate in zip(NODES, rates, strict=True))
    assert [each.node for each in found.odd] == ["node005"] and (found.odd[0].deviations or 0) > 3.5


@settings(deadline=None, max_examples=20)
@given(st.integers(4, 12), st.integers(0, 11), st.sampled_from([{"digest": "99"}, {"bf16": (500.0, 700.0)}]))
def test_the_odd_one_is_found_wherever_it_is(count: int, place: int, other: dict[str, Any]) -> None:
    name = NODES[place % count]
    found = fleet(FleetNode(each, run(**other) if each == name else run()) for each in NODES[:count])
    assert set(odd(found)) == {name}


_ONE: Final = st.sampled_from([{}, {"digest": "99"}, {"status": "failed"}, {"bf16": (500.0, 700.0)}])


@settings(deadline=None, max_examples=20)
@given(st.lists(_ONE, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_does_not_matter(others: list[dict[str, Any]], drawn: random.Random) -> None:
    found = [FleetNode(name, run(**more)) for name, more in zip(NODES, others, strict=False)]
    shuffled = list(found)
    drawn.shuffle(shuffled)
    assert fleet(found) == fleet(shuffled)


@given(st.sets(st.from_regex(r"[a-z]{1,3}-?0{0,2}[0-9]{0,3}", fullmatch=True)))
def test_a_hostlist_has_every_name_once(names: set[str]) -> None:
    assert sorted(_expanded(hostlist(names))) == sorted(names)


def _expanded(text: str) -> Iterator[str]:
    """As `scontrol show hostnames` does it."""
    for stem, inside in re.findall(r"([^\[,]+)(?:\[([^\]]*)\])?", text):
        for part in inside.split(","):
            first, _, last = part.partition("-")
            numbers = range(int(first), int(last or first) + 1) if inside else ()
            yield from (f"{stem}{number:0{len(first)}d}" for number in numbers)
        if not inside:
            yield stem


def test_commands_name_single_nodes_and_run_nothing_else() -> None:
    """Names are those of folders: Slurm would expand brackets, a shell a dollar."""
    names = ("n1", "n2", "n[1-200]", "$(reboot)", "a b;c", "x,y", "-f", "z\nscontrol")
    lines = drain_commands(fleet(FleetNode(name, None, f"it's {name}" if name == "n1" else "gone") for name in names))
    commands = [line for line in lines if not line.startswith("# not the name of a node: ")]
    assert sorted(map(shlex.split, commands)) == [
        ["scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=envspec: lost: it's n1"],
        ["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=envspec: lost: gone"],
    ]
    assert len(lines) == len(names) and not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node1", "node2", "node3", "node7"], "node[1-3,7]"),
        (["node008", "node009", "node010", "login"], "login,node[008-010]"),
        (["gpu-a", "gpu-b"], "gpu-a,gpu-b"),
        (["n10", "n9"], "n[9-10]"),
        (["a", "a1", "a2"], "a,a[1-2]"),
        # Their order is not that of a set of strings, which another process has otherwise.
        ([f"n{1:0{width}d}" for width in range(1, 7)], "n000001,n00001,n0001,n001,n01,n1"),
        ([], ""),
    ],
)
def test_hostlists(names: list[str], text: str) -> None:
    assert hostlist(names) == text


def test_a_plot_shows_the_worst_gpu_of_each_node() -> None:
    """The best one of a node with one slow card says nothing."""
    page = FLEET.render("html", fleet(nodes(**node("node007", bf16=(700.0, 560.0)))))
    assert ">node007: 560 TFLOP/s</text>" in page
    drawing = page[page.index("<svg") : page.index("</svg>")]
    dots, marked = re.findall(r'<path(?: class="marked")? d="(M[^"]+h0)"', drawing)
    assert (dots.count("M"), marked.count("M")) == (11, 1)


def test_many_odd_numbers_are_folded() -> None:
    """Each of ten nodes in three of its rates: the first screen and a terminal have the worst."""
    rates = [f"mode {number}" for number in range(3)]
    usual, slow = (one(*(rate(value, name=name) for name in rates)) for value in (700.0, 500.0))
    found = fleet(FleetNode(f"n{number}", slow if number < 10 else usual) for number in range(40))
    page, text = FLEET.render("html", found), FLEET.render("text", found, 100)
    assert "... and 10 more: all of them are below" in page and page.count("mode 2</td>") == 10
    assert "... and 10 more: --format json has all of them" in text


def test_a_command_is_one_line_of_text() -> None:
    reason = "NODE_FAIL: " + "the node did not answer, " * 5
    text = FLEET.render("text", fleet(nodes(node003=FleetNode("node003", None, reason))), 80)
    lines = [line for line in text.splitlines() if "scontrol" in line]
    assert len(lines) == 1 and shlex.split(lines[0])[-1] == f"Reason=envspec: lost: {reason.strip()}"


def test_a_large_fleet_is_a_small_page() -> None:
    """200 nodes of eight GPUs, three of them odd: those are in the first part of the page."""
    drawn = random.Random(1)
    found = []
    for number in range(1, 201):
        rates = [drawn.gauss(700, 7) for _ in range(8)]
        rates = [0.8 * each for each in rates] if number == 17 else rates
        found.append(FleetNode(f"node{number:03d}", run(bf16=rates, digest="99" if number == 101 else "11")))
    found[149] = replace(found[149], receipt=None, lost="NODE_FAIL: NodeDown")
    page = FLEET.render("html", fleet(found))
    assert len(page) < 2_000_000
    body = page[page.index("<body>") :]
    assert "3 of 200 nodes are odd: drain node[101,150], watch node017" in body[:200]
    assert all(body.index(words) < 4000 for words in ("computes other results", "NODE_FAIL", "bf16, on GPU 0-7"))
    assert body.index("scontrol update NodeName=node101 ") < body.index("bf16, on GPU 0-7") < body.index("<svg")
    assert "node[001-016,018-100,102-149,151-200]" in body
