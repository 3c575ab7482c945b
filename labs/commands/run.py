"""Run an experiment, store it, and say what came out."""

from __future__ import annotations

from typing import Any

import click

from labs.run import OPTIONS, destination, execute, is_pair


class Command(click.Command):
    """A command whose `--set` takes several `key=value` at once: `--set estimator=rloo loss=vanilla`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give every pair that follows one of `--set` a `--set` of its own."""
        spread: list[str] = []
        for argument in args:
            more = spread[-2:-1] == ["--set"] and is_pair(argument)
            spread += ["--set", argument] if more else [argument]
        try:
            return super().parse_args(ctx, spread)
        except click.UsageError as error:
            from labs.registry import experiments

            named = [argument for argument in args if argument in experiments]
            if "extra argument" in error.message and named:
                raise click.UsageError(f"{error.message}; an experiment is chosen by --experiment {named[0]}") from None
            raise


def _option(name: str, kind: str, metavar: str, text: str) -> click.Option:
    if not kind:
        return click.Option([name, destination(name)], is_flag=True, help=text)
    value = click.INT if kind == "integer" else click.STRING
    return click.Option([name, destination(name)], type=value, multiple=kind == "pairs", metavar=metavar, help=text)


def _given(**options: Any) -> None:
    """Leave out what was not given, so that defaults stand in one place."""
    execute(**{name: value for name, value in options.items() if value not in (None, (), False)})


command = Command(
    "run",
    callback=_given,
    params=[_option(name, *about) for name, about in OPTIONS.items()],
    help=f"{__doc__}\n\nFrom Python: labs.run(NAME, seed=7, updates=100).",
    short_help=__doc__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
