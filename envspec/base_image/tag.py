"""Tag and recorded digests of the base image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from envspec.base_image.cuda import Release
from envspec.base_image.types import HELD, REPOSITORY, NoSuchImage
from envspec.facts import Facts
from envspec.facts.tables import ImageRow, numeric
from envspec.models import BaseImage, CudaVersion, Decision, PinnedDigest, Platform


@dataclass(frozen=True, slots=True)
class Choice:
    """An image with the reasons for it."""

    image: BaseImage
    decisions: tuple[Decision, ...]
    warnings: tuple[str, ...] = ()


def choose_image(
    release: Release, flavors: Sequence[Decision], os: str, platforms: Sequence[Platform], facts: Facts
) -> Choice:
    """The tag: the smallest flavour that exists, in the newest patch of the minor. A patch whose digest is recorded
    for every platform goes before a newer one without: a lock without a digest can't be built until a registry answers.

    A CUDA newer than every image known here takes the newest image of its major version: the packages bring their own.

    Raises:
        NoSuchImage: no patch of that minor has such a flavour on that system.
    """
    for cuda in (release.cuda, *_older_minors(release.cuda, facts)):
        for flavor in flavors:
            tagged = _tags(cuda, flavor.value, os, facts)
            if tagged:
                choice = _choice(flavor, tagged, platforms, facts)
                return choice if cuda == release.cuda else _fallen_back(choice, release.cuda)
    raise _no_such_image(release.cuda, flavors[0].value, os, facts)


def _older_minors(cuda: CudaVersion, facts: Facts) -> tuple[CudaVersion, ...]:
    """The minors to fall back on, newest first: none unless `cuda` is newer than all that are known of its major."""
    known = {CudaVersion.parse(row.cuda) for row in facts.images}
    same = sorted((each for each in known if each.major == cuda.major), reverse=True)
    return tuple(same) if same and cuda > same[0] else ()


def _tags(cuda: CudaVersion, flavor: str, os: str, facts: Facts) -> list[tuple[str, ImageRow]]:
    return [
        (f"{name}-{_tag_flavor(row, flavor)}-{os}", row)
        for name in facts.releases_of(cuda)
        for row in facts.images
        if row.cuda == name and os in row.os and _tag_flavor(row, flavor)
    ]


def _choice(
    flavor: Decision, tagged: Sequence[tuple[str, ImageRow]], platforms: Sequence[Platform], facts: Facts
) -> Choice:
    tag, row = max(
        tagged, key=lambda pair: (all(facts.digest_of(pair[0], each) for each in platforms), numeric(pair[1].cuda))
    )
    cuda, os, newest = CudaVersion.parse(row.cuda), tag.rpartition("-")[2], tagged[-1][1].cuda
    why = f"the newest patch of CUDA {cuda} with {flavor.value} on {os}"
    if newest != row.cuda:
        why = f"the newest patch of CUDA {cuda} with {flavor.value} and a recorded digest; {newest} has none"
    digests = tuple(pinned_digest(tag, platform, facts) for platform in platforms)
    image = BaseImage(REPOSITORY, tag, row.cuda, flavor.value, os, digests)
    decisions = (flavor, Decision("image.tag", tag, why, row.source), *map(digest_decision, digests))
    return Choice(image, decisions, _end_of_life(tag, row, facts))


def _fallen_back(choice: Choice, cuda: CudaVersion) -> Choice:
    told = (
        f"no image of CUDA {cuda} is known here: {choice.image.tag} is the newest of its major version, and the locked "
        "packages bring their own libraries. Another one: [image] base"
    )
    return replace(choice, warnings=(told, *choice.warnings))


def pinned_digest(tag: str, platform: Platform, facts: Facts) -> PinnedDigest:
    """The recorded digest of a tag on a platform, or one that is still to be resolved."""
    row = facts.digest_of(tag, platform)
    if row is None:
        return PinnedDigest(platform, None, "unresolved", "", "no digest of a known kind is recorded for this tag")
    return PinnedDigest(platform, row.digest, "recorded", row.kind, row.source)


def custom_image(base: str, os: str, platforms: Sequence[Platform], facts: Facts) -> Choice:
    """The user's own base image: `host/name:tag@sha256:...`, its digest as given.

    A tag of NVIDIA's own repository that no list of tags holds is told: where no registry is asked, nothing else would.
    """
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
    warnings = () if digest else _unlisted(f"{folder}{slash}{name}", tag, facts)
    return Choice(image, (decision, *map(digest_decision, pinned)), warnings)


def _unlisted(repository: str, tag: str, facts: Facts) -> tuple[str, ...]:
    listed = {f"{row.cuda}-{flavor}-{os}": row for row in facts.images for flavor in row.flavors for os in row.os}
    version, _, rest = tag.partition("-")
    systems = {os for row in facts.images for os in row.os}  # of others (rockylinux, ...) no list was read
    if repository not in (REPOSITORY, REPOSITORY.removeprefix("docker.io/")) or tag in listed:
        return ()
    if rest.rpartition("-")[2] not in systems:
        return ()
    alike = [name for name, row in listed.items() if row.cuda.startswith(f"{version}.") and name.endswith(f"-{rest}")]
    nearest = f"; {max(alike, key=numeric)} is" if alike else ""
    return (f"{repository}:{tag} is in no list of NVIDIA's tags that is known here{nearest}",)


def digest_decision(pinned: PinnedDigest) -> Decision:
    """What a lock says of a platform's digest, and of where it is from."""
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
    return (
        f"{REPOSITORY}:{tag} is past its end of life{by}: {policy.text}. "
        "`envspec image mirror` keeps a copy in a registry of your own",
    )


def _no_such_image(cuda: CudaVersion, flavor: str, os: str, facts: Facts) -> NoSuchImage:
    rows = [row for row in facts.images if CudaVersion.parse(row.cuda) == cuda]
    systems = sorted({name for row in rows if _tag_flavor(row, flavor) for name in row.os})
    flavors = [name for name in HELD if any(os in row.os and _tag_flavor(row, name) for row in rows)]
    hints = [f"{flavor} exists on {', '.join(systems)} ([cuda] os)"] if systems else []
    hints += [f"{os} has {', '.join(flavors)} ([cuda] flavor)"] if flavors else []
    # The lists of tags were read up to a day: of newer releases only those tags are known that somebody used.
    listed = any(row.status != "unknown" for row in rows)
    known = "NVIDIA publishes no" if listed else "nothing is known here of a"
    return NoSuchImage(
        f"{known} CUDA {cuda} image with flavour {flavor} on {os}",
        hint="; ".join([*hints, 'name an image of your own: [image] base = "..."']),
    )
