"""Thin Luigi tasks: what depends on what, and when it is complete. The work is in `pipefit`."""
