"""The command `pipefit`."""

from pipefit.cli.commands import main

__all__ = ["main"]
