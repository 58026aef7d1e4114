"""`envspec`: the group of commands, and the one place that turns errors into text and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import click

from envspec.cli import output, terminal
from envspec.errors import EXIT_CODES, EnvspecError, UsageError
from envspec.names import RENAMED
from envspec.version import VERSION

#: Command -> (module and attribute, one line of help). Modules are imported when a command runs: `--help` stays fast.
COMMANDS: Final = {
    "init": ("envspec.cli.init:command", "Write a spec and its lock from a project's files."),
    "lock": ("envspec.cli.lock:command", "Resolve specs, and write their locks."),
    "add": ("envspec.cli.edit:add", "Add requirements to a spec, and lock it."),
    "remove": ("envspec.cli.edit:remove", "Remove requirements from a spec, and lock it."),
    "explain": ("envspec.cli.inspect:explain", "Show every decision of a lock, or of one of its packages."),
    "diff": ("envspec.cli.inspect:diff", "Show what differs between two locks."),
    "fit": ("envspec.cli.inspect:fit", "Check whether a machine can run a lock."),
    "audit-project": ("envspec.cli.audit_project:command", "Report what is wrong with a project; needs no spec."),
    "doctor": ("envspec.cli.inspect:doctor", "Check this machine: driver, engine, disk, network."),
    "config": ("envspec.cli.inspect:config", "Show the settings of this machine, and where each comes from."),
    "install": ("envspec.cli.environment:install", "Install a lock's environment on this machine."),
    "verify": ("envspec.cli.environment:verify", "Check an environment against its lock, file by file."),
    "export": ("envspec.cli.export:command", "Write a lock as pylock.toml, devcontainer.json, pixi.toml and others."),
    "image": ("envspec.cli.image:command", "Build a lock's image, show its ID, compare images."),
    "conformance": ("envspec.cli.conformance:command", "Test that this machine runs a lock's stack."),
    "fleet": ("envspec.cli.fleet:command", "Run the suite on the nodes of a cluster, and compare them."),
    "run": ("envspec.cli.container:run", "Run a command in a container of a lock's image."),
    "shell": ("envspec.cli.container:shell", "Open a shell in a container of a lock's image."),
    "cache": ("envspec.cli.cache:command", "Show the size of the cache, and remove what is in it."),
    "receipts": ("envspec.cli.inspect:receipts", "Compare receipts of conformance runs."),
    "explain-error": ("envspec.cli.inspect:explain_error", "Explain an error by its code: meaning, example, fix."),
    "schema": ("envspec.cli.inspect:schema", "Print the JSON schema of spec.toml, or of a receipt."),
}

#: Set by a shell's completion; click's name for it.
_COMPLETE: Final = "_ENVSPEC_COMPLETE"
# 128 and the signal's number, as shells report programs that a signal ended.
_INTERRUPTED: Final = 130
_READER_GONE: Final = 141


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])
        super().format_epilog(ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            message = f"no such command {args[0]!r}"
            if near := get_close_matches(args[0], COMMANDS, n=1):
                message += f"; did you mean {near[0]!r}?"
            ctx.fail(message)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Completion of commands, options and names of locks in bash (in zsh and fish: zsh_source, fish_source):\n\n"
    '\b\n  eval "$(_ENVSPEC_COMPLETE=bash_source envspec)"',
)
@click.version_option(VERSION, prog_name="envspec")
@output.messages
def cli() -> None:
    """Reproducible GPU environments: an image from your project's lock, or from one TOML spec."""


def main() -> None:
    """Run a command. Every error is one message on stderr, and an exit code."""
    terminal.soften_streams()
    terminal.raise_limit()
    code = run(sys.argv[1:])
    if not _is_observed():
        # Nothing of ours waits for the interpreter's own end, which takes a tenth of a short run. After a solve of
        # conda's it can crash: rattler's threads release Python's objects after their answer (0.28.0: 12 of 100 runs by
        # signal 6 or 11).
        terminal.leave(code)
    sys.exit(code)


def _is_observed() -> bool:
    """Whether a profiler, a debugger or coverage writes what it has seen when Python ends."""
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return True
    # Since Python 3.12, cProfile and coverage are tools of this module, which has at most six.
    monitoring: Any = getattr(sys, "monitoring", None)
    return monitoring is not None and any(map(monitoring.get_tool, range(6)))


class _Interrupted(EnvspecError, exit_code=_INTERRUPTED, code="interrupted"):
    """Ctrl-C."""


class _InternalError(EnvspecError, code="internal"):
    """An error that no command expects."""


def run(words: Sequence[str]) -> int:
    """The exit code of a command line. Only the result is written to stdout."""
    try:
        return _reported(words)
    except BrokenPipeError:
        # `| head` has read enough. Nothing may be written any more, also not while Python exits.
        terminal.drop_stdout()
        return _READER_GONE


def _reported(words: Sequence[str]) -> int:
    output.SETTINGS.begin(words)
    try:
        completing = os.environ.get(_COMPLETE)
        if completing:
            from click.shell_completion import shell_complete

            return shell_complete(cli, {}, "envspec", _COMPLETE, completing)
        with terminal.handle_sigterm():
            return _command(words)
    except click.ClickException as error:
        output.SETTINGS.read_ahead(words)
        return output.fail(_usage_error(error))
    except EnvspecError as error:
        return output.fail(_system_error(error) or error)
    except (KeyboardInterrupt, click.Abort):
        return output.fail(_Interrupted("interrupted"), "interrupted")
    except BrokenPipeError:
        raise
    except Exception as error:
        return output.fail(
            _system_error(error)
            or _InternalError(
                f"internal error: {type(error).__name__}: {error}", hint="run again with --debug and report its output"
            )
        )


def _system_error(error: Exception) -> EnvspecError | None:
    from envspec.cli.system_errors import system_error

    return system_error(error)


def _usage_error(error: click.ClickException) -> UsageError:
    """click's error as envspec's own."""
    text = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.option_name in RENAMED:
        return UsageError(f"no such option {error.option_name!r}", hint=f"write {RENAMED[error.option_name]}")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return UsageError(text)
    usage = " ".join(context.command.collect_usage_pieces(context))
    return UsageError(
        text[:1].lower() + text[1:],
        hint=f"write `{context.command_path} {usage}`; `{context.command_path} --help` lists the options",
    )


def _command(words: Sequence[str]) -> int:
    try:
        # Not `cli.main`, which ends the process by itself when a pipe breaks.
        with cli.make_context("envspec", [*words] or ["--help"]) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as end:
        code = end.exit_code
    if sys.stdout is not None:
        sys.stdout.flush()
    return code if isinstance(code, int) else 0
