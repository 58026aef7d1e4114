"""Errors: what was found, where, and what to do; each carries its own exit code.

Exit codes: 0 done · 1 a fault of envspec's own · 2 spec or usage · 3 lock stale or changed by hand ·
4 no solution · 5 network or registry · 6 this machine can't run it · 7 conformance failed ·
8 the environment differs from its lock · 10 `diff` or `receipts` found differences
"""

from __future__ import annotations

from typing import ClassVar

from envspec.credentials import shown


class EnvspecError(Exception):
    """One clear message for the user; `hint` says what to do about it."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Whatever it quotes: of a server, of another program, of the spec.
        self.message = shown(message)
        super().__init__(self.message)
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class UsageError(EnvspecError):
    """Arguments or files that do not fit the command."""

    exit_code = 2


class StaleLock(EnvspecError):
    """The lock does not belong to this spec, or a file of it was changed by hand."""

    exit_code = 3


class NoSolution(EnvspecError):
    """No set of packages satisfies the spec, or none that `[cuda] gpus` can run."""

    exit_code = 4


class NetworkError(EnvspecError):
    """An index or a registry did not answer, or answered what cannot be used."""

    exit_code = 5


class UnfitMachine(EnvspecError):
    """This machine can't run the lock."""

    exit_code = 6
