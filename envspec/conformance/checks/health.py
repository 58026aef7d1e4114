"""What NVML reports of each GPU's memory, PCIe, NVLinks, fabric and errors, before, during and after the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envspec.conformance.events import CheckContext
from envspec.conformance.health import FABRIC_STATES, RECOVERY_ACTIONS, Watched, fabric_faults, read, read_watch
from envspec.conformance.nvml import DriverError, Nvml, open_nvml
from envspec.conformance.results import Board, NotRun
from envspec.conformance.text import named_texts

_RESET = "take the node out of use and reset this GPU (`nvidia-smi --gpu-reset`), or restart the node"
_REPLACE = "take the node out of use, and have this GPU replaced"
_FABRIC = "see the service nvidia-fabricmanager, its log and `nvidia-smi -q -d FABRIC`; restart it, then reset the GPUs"
_SLOT = "see that the card is well seated, and the slot and the BIOS give it all lanes; then restart the node"
_COOLING = "check the cooling and the power of this node: its hardware lowers the clocks"
_LINK = "see `nvidia-smi nvlink --status`; reset the GPUs, then check bridges, cables and switches"


@dataclass(frozen=True)
class _Counter:
    """A value of which only 0 is healthy, or which only informs (hint is empty).

    note: what belongs beside the number.
    """

    name: str
    hint: str = ""
    note: str = ""


#: DCGM's health watches fail uncorrected errors, pending and failed remapping too (DCGM user guide, "Health
#: Monitoring"). Azure NHC's limit is that of its check_gpu_ecc for H100 and H200.
_COUNTERS = (
    _Counter("uncorrected errors", _RESET, "of memory, since the driver was loaded"),
    _Counter("remapping pending", _RESET, "a row of memory is replaced at the next reset"),
    _Counter("remapping failed", _REPLACE, "no spare row of memory is left"),
    _Counter("retirement pending", _RESET, "a page of memory is retired at the next reset"),
    _Counter(
        "corrected errors", note="of memory, since the driver was loaded; Azure NHC takes nodes out at 20,000,000"
    ),
    _Counter("corrected errors, lifetime"),
    _Counter("uncorrected errors, lifetime"),
    _Counter("rows remapped, corrected"),
    _Counter("rows remapped, uncorrected"),
    _Counter("persistence mode", note="1: the driver keeps the GPU initialised between programs"),
    _Counter("PCIe replays", note="transfers that were repeated"),
    _Counter("link replays", note="of all NVLinks"),
    _Counter("link recoveries", note="of all NVLinks"),
    _Counter("link CRC flit", note="of all NVLinks; Meta's gcm gives 30 as an example of a limit"),
    _Counter("link CRC data", note="of all NVLinks; Meta's gcm gives 10 as an example of a limit"),
)
#: Why a GPU's hardware lowers its clocks; by software it only informs.
_BY_HARDWARE = ("hardware slowdown", "hardware thermal slowdown", "hardware power brake")
#: A sample may see the start of work, in which a clock is lowered for a moment.
_LASTING = 2
#: Xid errors that a program causes, also one that the suite has ended, and such that are only recorded: they inform.
#: Source: NVIDIA, "Xid Errors", "Xid Catalog".
_XIDS = {
    8: "a program's kernel took too long",
    13: "a program's kernel failed",
    31: "a program used a wrong address",
    43: "a program's channel was stopped",
    45: "a program was ended while it used the GPU",
    63: "a row of memory is to be remapped",
    92: "many corrected errors of memory",
    68: "a video decoder failed",
    69: "a program's class error",
}
#: Of the others, those that say more than their number.
_FAULTS = {
    48: "an uncorrected error of memory",
    62: "a controller of the GPU halted",
    64: "a row of memory can't be remapped",
    74: "an error of an NVLink",
    79: "the GPU has fallen off the bus",
    94: "a contained error of memory",
    95: "an uncontained error of memory",
    119: "the GPU's system processor does not answer",
    120: "an error of the GPU's system processor",
    145: "an error of an NVLink",
    149: "an error of an NVLink",
    154: "the GPU needs a recovery action",
}


def check(context: CheckContext) -> None:
    """Raises NotRun on the CPU, and without NVML."""
    driver = context.request.driver
    if driver is None:
        raise NotRun("no GPU is requested")
    if driver.nvml_missing or driver.nvml_error:
        raise NotRun(driver.nvml_missing or driver.nvml_error)
    report(context, driver.boards, read_watch(Path(context.request.watch)) if context.request.watch else {})


def report(context: CheckContext, boards: Sequence[Board], watched: Mapping[int, Watched]) -> None:
    """Report what NVML says of each GPU. watched: by its number in NVML, what was seen of it while checks ran."""
    values: dict[int, dict[str, int]] = {}
    with open_nvml() as nvml:
        for board in boards:
            if board.hidden:
                context.not_run(f"GPU {board.index}", "this container or user may not use it")
                continue
            with context.phase(f"GPU {board.index}"):
                values[board.index] = _gpu(context, nvml, board.index, watched.get(board.index, Watched()))
    _links(context, {each.index: each.name for each in boards}, values)


def _gpu(context: CheckContext, nvml: Nvml, index: int, seen: Watched) -> dict[str, int]:
    """Report one GPU; returns its values by name."""
    gpu = f"GPU {index}"
    try:
        values, errors, lacking = read(nvml, nvml.handle("nvmlDeviceGetHandleByIndex_v2", index))
    except DriverError as error:
        context.exact(f"{gpu}: answers", ok=False, detail=f"after the checks: {error}", hint=_RESET)
        return {}
    detail = named_texts(errors) or f"{len(values)} values"
    context.exact(f"{gpu}: answers", ok=not errors, detail=detail, hint=_RESET)
    for counter in _COUNTERS:
        if counter.name in values:
            _count(context, gpu, counter, values[counter.name], seen.before.get(counter.name))
    for name, problem in {**lacking, **_unseen(seen)}.items():
        context.not_run(f"{gpu}: {name}", problem)
    _recovery(context, gpu, values)
    _fabric(context, gpu, values)
    _pcie(context, gpu, values, seen)
    _xids(context, gpu, seen)
    _clocks(context, gpu, seen)
    if "links" in values and "links" in seen.before:
        before = seen.before["links"]
        detail = f"{values['links']} active, {before} before the checks"
        context.exact(f"{gpu}: NVLinks stay active", ok=values["links"] >= before, detail=detail, hint=_LINK)
    return values


def _count(context: CheckContext, gpu: str, counter: _Counter, value: int, before: int | None) -> None:
    more = "" if before is None else f"{value - before} more during the checks"
    detail = "; ".join(filter(None, [more, counter.note]))
    if counter.hint:
        context.exact(f"{gpu}: no {counter.name}", ok=not value, detail=f"{value}; {detail}", hint=counter.hint)
    else:
        context.measure(f"{gpu}: {counter.name}", value, "", detail)


def _unseen(seen: Watched) -> dict[str, str]:
    """What could not be sampled during the checks -> why."""
    if not seen.samples:
        return dict.fromkeys(("Xid", "PCIe", "clocks"), "nothing was sampled during the checks")
    unseen = {} if seen.busy else {"clocks": "no sample had a kernel"}
    if not seen.width:
        unseen["PCIe"] = "no sample had traffic: `bandwidth` makes some"
    return {**unseen, **seen.problems}


def _recovery(context: CheckContext, gpu: str, values: Mapping[str, int]) -> None:
    if "recovery action" in values:
        action = values["recovery action"]
        name = RECOVERY_ACTIONS[action] if action < len(RECOVERY_ACTIONS) else f"action {action}"
        context.exact(f"{gpu}: no recovery is due", ok=not action, detail=name, hint=f"NVML requests: {name}")


def _fabric(context: CheckContext, gpu: str, values: Mapping[str, int]) -> None:
    """State 0: it has none. A fabric without its manager leaves CUDA uninitialised, or GPUs without their peers."""
    if not values.get("fabric state"):
        return
    state, status = values["fabric state"], values["fabric status"]
    name = FABRIC_STATES[state] if state < len(FABRIC_STATES) else f"state {state}"
    faults = fabric_faults(values["fabric health"])
    if status:
        faults.insert(0, f"error {status}")
    is_well = name == FABRIC_STATES[-1] and not faults
    context.exact(f"{gpu}: its fabric", ok=is_well, detail="; ".join([name, *faults]), hint=_FABRIC)


def _pcie(context: CheckContext, gpu: str, values: Mapping[str, int], seen: Watched) -> None:
    """Compare what was seen with traffic with the most that GPU and slot have together.

    Without traffic a GPU lowers its generation, and some lower their width.
    """
    most, own = values.get("largest PCIe generation"), values.get("the GPU's PCIe generation")
    if most and own and most < own:
        context.note(f"{gpu}: its slot", f"PCIe generation {most}, and the GPU has {own}")
    for name, now, largest in (
        ("width", seen.width, values.get("largest PCIe width")),
        ("generation", seen.generation, most),
    ):
        if now and largest:
            detail = f"{now} with traffic; GPU and slot have {largest}"
            context.exact(f"{gpu}: PCIe {name}", ok=now >= largest, detail=detail, hint=_SLOT)


def _xids(context: CheckContext, gpu: str, seen: Watched) -> None:
    if not seen.samples or "Xid" in seen.problems:
        return
    faults = [each for each in seen.xids if each not in _XIDS]
    texts = [str(each) for each in faults]
    for place, each in enumerate(faults):
        if each in _FAULTS:
            texts[place] += f" ({_FAULTS[each]})"
    hint = f"see NVIDIA's catalogue of Xid errors for {', '.join(map(str, sorted(set(faults))))}; {_RESET}"
    detail = ", ".join(texts) or "none"
    context.exact(f"{gpu}: no Xid error during the checks", ok=not faults, detail=detail, hint=hint)
    for number in sorted({*seen.xids} - {*faults}):
        context.note(f"{gpu}: Xid {number}", f"{_XIDS[number]}, {seen.xids.count(number)} times")


def _clocks(context: CheckContext, gpu: str, seen: Watched) -> None:
    if not seen.busy or "clocks" in seen.problems:
        return
    faults = [each for each in _BY_HARDWARE if seen.reasons.get(each, 0) >= _LASTING]
    detail = "; ".join(f"{name} in {count} of {seen.busy} samples" for name, count in seen.reasons.items())
    name = f"{gpu}: its hardware does not lower its clocks"
    context.exact(name, ok=not faults, detail=detail or f"{seen.busy} samples under load", hint=_COOLING)


def _links(context: CheckContext, names: Mapping[int, str], values: Mapping[int, Mapping[str, int]]) -> None:
    """Behind switches, like GPUs have as many active NVLinks; bridges may join some GPUs of a node only.

    Some products have fewer links than their chip: how many are active is compared, not how many there are.
    """
    has_switch = any(each.get("switch") for each in values.values())
    most: dict[str, int] = {}
    for index, each in values.items():
        most[names[index]] = max(most.get(names[index], 0), each.get("links", 0))
    for index, each in values.items():
        if not each.get("all links"):
            continue
        detail = f"{each['links']} of {each['all links']} are active"
        if has_switch:
            best = most[names[index]]
            detail = f"{detail}; the most of a GPU of its kind here is {best}"
            context.exact(f"GPU {index}: NVLinks", ok=each["links"] == best, detail=detail, hint=_LINK)
        else:
            context.note(f"GPU {index}: NVLinks", detail)
