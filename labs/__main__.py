"""`python -m labs` and the console script `labs`: a command is a file of `labs/commands`, imported when used."""

from __future__ import annotations

import sys

import click

from labs.console import guard
from labs.registry import commands
from labs.terminal import invoke


class Lazy(click.Group):
    """A group whose commands are the files of a folder."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names from file names; nothing is imported."""
        return [name.replace("_", "-") for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; an unknown name raises `InputError` with close names."""
        name = cmd_name.replace("-", "_")
        if name not in commands:
            raise commands.unknown(cmd_name)
        found: click.Command = commands[name].command
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line a command, read from the docstring of its file without importing it."""
        rows = [(name, commands.describe(name.replace("-", "_"))) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--version", is_flag=True, help="Print the version.")
@click.pass_context
def group(ctx: click.Context, version: bool) -> None:
    """A laboratory for tool-using agents that learn from reward, small enough to be exact.

    Start with: labs run --experiment agent --seed 7
    """
    if version:
        import labs

        click.echo(f"tabular-agent-rl-lab {labs.__version__}")
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> int:
    """The entry point; returns the exit code."""
    return guard(invoke, group, "labs", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
