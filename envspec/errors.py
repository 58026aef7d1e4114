"""Errors: what was found, where, and what to do; each carries its own exit code, which is in `EXIT_CODES`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from envspec.credentials import shown

#: Exit code of a command -> what it means. From 126 on, as shells report programs.
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "success",
    1: "internal error",
    2: "invalid spec, a line of it that nothing satisfies, or invalid usage",
    3: "the lock is stale, or was changed by hand",
    4: "no solution, no build for the GPUs of the spec, or a failed build",
    5: "network or registry error, or an unusable file from there",
    6: "this machine can't do it, or the conformance suite has nothing to test",
    7: "the conformance suite failed, or did not test enough for an answer",
    8: "the environment or the image differs from its lock, or a build from its record",
    10: "`diff`, `image diff` or `receipts` found differences, `init` left lines out, or `audit-project` found errors",
    126: "`run`: the command can't be started",
    127: "`run`: there is no such command in the image",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output has closed it",
    143: "ended by SIGTERM",
}
#: Lines and characters of `details` that a message quotes, at their beginning and at their end.
_QUOTED_LINES: Final = 6
_QUOTED: Final = 400


class EnvspecError(Exception):
    """An error with one clear message; `hint` states what to do.

    code: the kind of error, for programs; `envspec explain-error` explains it. details: output of another program, of
    any length, at the end of the message.
    """

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal"

    def __init_subclass__(cls, *, exit_code: int | None = None, code: str = "") -> None:
        """exit_code, code: by default those of the class above."""
        if exit_code is not None:
            cls.exit_code = exit_code
        if code:
            cls.code = code

    def __init__(self, message: str, *, hint: str | None = None, details: str = "") -> None:
        # Whatever it quotes: of a server, of another program, of the spec.
        self.message = shown(message)
        super().__init__(self.message)
        self.hint = hint
        self.details = shown(details).strip()

    def restate(self, message: str, hint: str | None) -> None:
        """Replace message and hint. Class and code stay, by which programs and pages distinguish errors."""
        self.message, self.hint = shown(message), hint
        self.args = (self.message,)

    def __str__(self) -> str:
        return self.text(_shortened(self.details))

    def text(self, details: str) -> str:
        """The message with its hint, and below them `details`."""
        text = self.message
        if self.hint:
            text += f"\n  hint: {self.hint}"
        if details:
            text += f"\n  details: {details}"
        return text

    def as_document(self) -> dict[str, object]:
        """Return a JSON object for programs: code, message, where, hint, exit_code and details."""
        document: dict[str, object] = {"code": self.code, "message": self.message, "where": None, "hint": self.hint}
        document["exit_code"] = self.exit_code
        if self.details:
            document["details"] = self.details
        return document


def _shortened(text: str) -> str:
    """The beginning and the end of a long text."""
    lines = text.splitlines()
    if len(lines) > 2 * _QUOTED_LINES:
        text = "\n".join([*lines[:_QUOTED_LINES], _LEFT_OUT, *lines[-_QUOTED_LINES:]])
    if len(text) > 2 * _QUOTED:
        text = f"{text[:_QUOTED].rpartition(' ')[0]} {_LEFT_OUT} {text[-_QUOTED:].partition(' ')[2]}"
    return text


_LEFT_OUT: Final = "[... --debug shows all of it ...]"


class UsageError(EnvspecError, exit_code=2, code="usage"):
    """Arguments or files that do not fit the command."""


class StaleLock(EnvspecError, exit_code=3, code="stale-lock"):
    """The lock does not belong to this spec, or a file of it was changed by hand."""


class NoSolution(EnvspecError, exit_code=4, code="no-solution"):
    """No set of packages satisfies the spec, or none that `[cuda] gpus` can run."""


class NetworkError(EnvspecError, exit_code=5, code="network"):
    """An index or a registry did not respond, or its response can't be used."""


class OfflineMiss(NetworkError, code="offline-miss"):
    """Something is not in the cache, and the network may not be used."""

    def __init__(
        self, what: str, hint: str = "run once with a network, or copy the cache of a machine with one"
    ) -> None:
        super().__init__(f"offline, and {what} is not in the cache", hint=hint)


class WrongHash(NetworkError, code="wrong-hash"):
    """A file whose hash is not the one that the lock, the spec or its index gives."""


class UnfitMachine(EnvspecError, exit_code=6, code="unfit-machine"):
    """This machine can't run the lock."""
