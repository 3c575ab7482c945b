"""Run a click command under `labs.console.guard`: its mistakes are input errors, its exits exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from labs.errors import InputError


def invoke(command: click.Command, name: str, arguments: Sequence[str]) -> object:
    """Parse the arguments, run the command, and return what it returns.

    Raises:
        InputError: click's usage errors, in one sentence.
        KeyboardInterrupt: the user gave up at a prompt.
    """
    try:
        with command.make_context(name, list(arguments)) as context:
            return command.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        raise InputError(error.format_message()) from error
    except click.Abort:
        raise KeyboardInterrupt from None
