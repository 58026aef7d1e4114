"""Values of confinement. Imports nothing: every command imports them."""

from __future__ import annotations

from enum import Enum


class Unconfined(Enum):
    """Whether foreign code may run unconfined where nothing on this machine can confine it."""

    REFUSED = "refused"
    ALLOWED = "allowed"
