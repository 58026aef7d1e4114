"""All decisions of a lock, those among them that have tables of their own in it."""

from __future__ import annotations

from collections.abc import Iterator

from envspec.lockfile.document import decision_key
from envspec.models import Commit, Decision, Lock, Override, PinnedDigest, Resolution
from envspec.reasons import WORDS, Reason, reason


def all_decisions(lock: Lock) -> tuple[Decision, ...]:
    """The decisions of a lock, and what its tables of overrides, commits, digests and constraints say, sorted."""
    decisions = [*lock.decisions, *map(_of_override, lock.overrides), *map(_of_commit, lock.commits)]
    for image in lock.base_images:
        decisions += map(_of_digest, image.digests)
    for part in lock.resolutions:
        decisions += _of_constraints(part)
    return tuple(sorted(decisions, key=decision_key))


def _of_override(override: Override) -> Decision:
    why = (reason("override", reason=override.reason),)
    return Decision(f"override.{override.name}", str(override), why, "the spec: pip.overrides")


def _of_commit(commit: Commit) -> Decision:
    why = reason("commit-of", ref=commit.ref) if commit.ref else reason("commit-of-default")
    return Decision(f"source.{commit.name}", commit.address, (why,), commit.requirement)


def source_of_digest(pinned: PinnedDigest) -> Reason:
    """Where the digest of a base image is from: in the lock's own word, if that is not known."""
    code = f"digest-{pinned.source}"
    return reason(code if code in WORDS else pinned.source)


def _of_digest(pinned: PinnedDigest) -> Decision:
    value, platform = pinned.digest or "unresolved", pinned.platform
    if not pinned.kind:
        return Decision("image.digest", value, (reason("digest", note=pinned.note),), "", platform)
    return Decision("image.digest", value, (source_of_digest(pinned),), pinned.note, platform)


def _of_constraints(part: Resolution) -> Iterator[Decision]:
    base = part.on_top_of
    if base and base.constraints:
        why = (reason("base-constraints", source=base.source),)
        yield Decision("base.constraints", "; ".join(base.constraints), why, base.source, part.target.platform)
