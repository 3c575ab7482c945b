"""Run an experiment, store it, and say what came out."""

from labs.run import command

__all__ = ["command"]
