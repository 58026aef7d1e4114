"""Locks of the system's on files; what they are lies with the other effects, where registries find it too."""

from __future__ import annotations

from envspec.effects.held import try_hold

__all__ = ["try_hold"]
