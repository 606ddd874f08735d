"""From gradients to updates of variables."""
