"""CUDA release, flavour, tag and recorded digests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envspec.base_image.pins import LIBRARIES, Pins
from envspec.base_image.request import (
    AUTO,
    REPOSITORY,
    CudaMismatch,
    CudaRequest,
    NoCudaRelease,
    NoSuchImage,
)
from envspec.facts import Facts
from envspec.facts.rows import ImageRow, numeric
from envspec.model import BaseImage, CudaVersion, Decision, PinnedDigest, Platform

#: Flavours from the smallest on; the cuDNN ones carry `cudnn8-` or `cudnn9-` in the tags of some releases.
FLAVORS: Final = ("base", "runtime", "cudnn-runtime", "devel", "cudnn-devel")


@dataclass(frozen=True, slots=True)
class Release:
    """cuda: the minor that the image must have. exact: the release that the pins name, if they do."""

    cuda: CudaVersion
    exact: str | None
    decision: Decision
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """An image with the reasons for it."""

    image: BaseImage
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()


def choose_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    """The CUDA of the lock: what the pins name, else torch's build, else the spec.

    Raises:
        CudaMismatch: the pins are for another CUDA than the spec asks for.
        NoCudaRelease: nothing tells.
    """
    told = sorted(
        ((found, each.platform) for each in pins for found in each.cudas), key=lambda pair: pair[0].cuda, reverse=True
    )
    if not told:
        return _untold_release(request, pins)
    first, platform = told[0]
    others = [(found, where) for found, where in told if found.cuda != first.cuda]
    if request.version is not None:
        for found, where in told:
            if found.cuda != request.version:
                raise CudaMismatch(
                    f"[cuda] version is {request.version}, but {found.told_by} on {where.value} is CUDA {found.cuda}",
                    hint=f'set [cuda] version = "{found.cuda}", or leave out what asks for {found.told_by.split()[0]}',
                )
    exact = max(
        (found.release for found, _ in told if found.cuda == first.cuda and found.release), key=numeric, default=None
    )
    decision = Decision(
        "cuda.release",
        exact or str(first.cuda),
        f"{first.told_by} is CUDA {exact or first.cuda}",
        first.source,
    )
    warnings = tuple(
        f"{found.told_by} on {where.value} is CUDA {found.cuda}, beside {first.told_by} on {platform.value}: "
        "two CUDAs in one lock; the image and the driver are chosen for the newer one"
        for found, where in others
    )
    return Release(first.cuda, exact, decision, warnings)


def _untold_release(request: CudaRequest, pins: Sequence[Pins]) -> Release:
    built = next((each.torch for each in pins if each.torch and each.torch.cuda), None)
    if built and built.cuda and request.version in (None, built.cuda):
        why = f"torch {built.version} is a {built.variant} build; no CUDA library comes as a wheel"
        return Release(built.cuda, None, Decision("cuda.release", str(built.cuda), why, "torch's variant"))
    if request.version is None:
        raise NoCudaRelease(
            "nothing that was locked tells which CUDA release it needs",
            hint='set it in the spec: [cuda] version = "12.8", or leave [cuda] out for an environment for the CPU',
        )
    why = "as the spec says; no CUDA library comes as a wheel"
    return Release(request.version, None, Decision("cuda.release", str(request.version), why, "[cuda] version"))


def choose_flavor(request: CudaRequest, pins: Sequence[Pins]) -> Decision:
    """`auto` is the smallest flavour that completes what the wheels bring; nvcc is in devel and never needed to run."""
    if request.flavor != AUTO:
        return Decision("image.flavor", request.flavor, "as the spec says", "[cuda] flavor")
    with_cuda = [each for each in pins if each.libraries or (each.torch and each.torch.cuda)]
    needed: set[str] = set()
    for each in with_cuda:
        wanted = set(LIBRARIES) if each.torch and each.torch.cuda else {"cudart"}
        needed |= wanted - set(each.libraries)
    if not with_cuda:
        needed = {"cudart"}
    flavor = "cudnn-runtime" if "cudnn" in needed else "runtime" if needed else "base"
    if not needed:
        why = f"the wheels bring {_listed(sorted(set(LIBRARIES) & _brought(with_cuda)))}: nothing else is needed to run"
    else:
        why = f"the smallest with {_listed(sorted(needed))}, which no wheel of the lock brings"
    return Decision("image.flavor", flavor, why, "names of the locked wheels; NVIDIA container-images Dockerfiles")


def _brought(pins: Sequence[Pins]) -> set[str]:
    return {library for each in pins for library in each.libraries}


def choose_image(
    release: Release, flavor: Decision, request: CudaRequest, platforms: Sequence[Platform], facts: Facts
) -> Choice:
    """The tag: newest patch of the minor that has the flavour on that system. A patch whose digest is recorded for
    every platform goes before a newer one without: a lock without a digest can't be built until a registry answers.

    Raises:
        NoSuchImage: no patch of that minor has the flavour on that system.
    """
    found = [
        (name, row)
        for name in facts.releases_of(release.cuda)
        for row in facts.images
        if row.cuda == name and request.os in row.os and _tag_flavor(row, flavor.value)
    ]
    if not found:
        raise _no_such_image(release.cuda, flavor.value, request.os, facts)
    tagged = [(f"{name}-{_tag_flavor(row, flavor.value)}-{request.os}", row) for name, row in found]
    tag, row = max(
        tagged, key=lambda pair: (all(facts.digest_of(pair[0], each) for each in platforms), numeric(pair[1].cuda))
    )
    newest = tagged[-1][1]
    why = f"the newest patch of CUDA {release.cuda} with {flavor.value} on {request.os}"
    if newest.cuda != row.cuda:
        why = (
            f"the newest patch of CUDA {release.cuda} with {flavor.value} and a recorded digest; {newest.cuda} has none"
        )
    digests = tuple(pinned_digest(tag, platform, facts) for platform in platforms)
    image = BaseImage(REPOSITORY, tag, row.cuda, flavor.value, request.os, digests)
    decisions = (flavor, Decision("image.tag", tag, why, row.source), *map(_digest_decision, digests))
    return Choice(image, decisions, _end_of_life(tag, row, facts))


def pinned_digest(tag: str, platform: Platform, facts: Facts) -> PinnedDigest:
    """The recorded digest of a tag on a platform, or one that is still to be resolved."""
    row = facts.digest_of(tag, platform)
    if row is None:
        return PinnedDigest(platform, None, "unresolved", "", "no digest of a known kind is recorded for this tag")
    return PinnedDigest(platform, row.digest, "recorded", row.kind, row.source)


def custom_image(base: str, os: str, platforms: Sequence[Platform]) -> Choice:
    """The user's own base image: `host/name:tag@sha256:...`, its digest as given."""
    named, _, digest = base.partition("@")
    folder, slash, last = named.rpartition("/")
    name, _, tag = last.partition(":")
    pinned = tuple(
        PinnedDigest(platform, digest, "spec", "", "as the spec says; its kind is for the registry to tell")
        if digest
        else PinnedDigest(platform, None, "unresolved", "", "the spec names no digest")
        for platform in platforms
    )
    image = BaseImage(f"{folder}{slash}{name}", tag, None, None, os, pinned)
    decision = Decision("image.tag", base, "the spec names its own base image", "[image] base")
    return Choice(image, (decision, *map(_digest_decision, pinned)))


def _digest_decision(pinned: PinnedDigest) -> Decision:
    return Decision(
        "image.digest",
        pinned.digest or "unresolved",
        pinned.note if not pinned.kind else f"{pinned.source}, kind {pinned.kind}",
        pinned.note if pinned.kind else "",
        pinned.platform,
    )


def _tag_flavor(row: ImageRow, flavor: str) -> str | None:
    """The flavour as the tag of that release has it: `cudnn-runtime` is `cudnn8-runtime` up to CUDA 12.2."""
    return next((name for name in row.flavors if re.sub(r"^cudnn\d+-", "cudnn-", name) == flavor), None)


def _end_of_life(tag: str, row: ImageRow, facts: Facts) -> tuple[str, ...]:
    superseded = [
        other.cuda
        for other in facts.images
        if CudaVersion.parse(other.cuda) == CudaVersion.parse(row.cuda)
        and numeric(other.cuda) > numeric(row.cuda)
        and set(other.os) & set(row.os)
    ]
    if row.status == "supported" or (row.status == "unknown" and not superseded):
        return ()
    by = f" ({superseded[-1]} follows it)" if superseded else ""
    policy = facts.policies["ended"]
    return (f"{REPOSITORY}:{tag} is past its end of life{by}: {policy.text}. Keep a copy in a registry of your own",)


def _no_such_image(cuda: CudaVersion, flavor: str, os: str, facts: Facts) -> NoSuchImage:
    rows = [row for row in facts.images if CudaVersion.parse(row.cuda) == cuda]
    systems = sorted({name for row in rows if _tag_flavor(row, flavor) for name in row.os})
    flavors = [name for name in FLAVORS if any(os in row.os and _tag_flavor(row, name) for row in rows)]
    own = 'name an image of your own: [image] base = "..."'
    hints = []
    if systems:
        hints.append(f"{flavor} exists on {_listed(systems)} ([cuda] os)")
    if flavors:
        hints.append(f"{os} has {_listed(flavors)} ([cuda] flavor)")
    known = "no image of that CUDA is known here; " if not rows else ""
    return NoSuchImage(
        f"NVIDIA publishes no CUDA {cuda} image with flavour {flavor} on {os}",
        hint=f"{known}{'; '.join([*hints, own])}",
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
