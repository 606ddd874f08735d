"""Which checkpoints stay: a pure function of what there is."""

from __future__ import annotations

from collections.abc import Sequence

from pipefit.records import CheckpointInfo

_LASTING = frozenset({"permanent", "final"})


def keep(
    checkpoints: Sequence[CheckpointInfo], *, recent_keep: int, best_step: int | None
) -> dict[str, frozenset[str]]:
    """Decide what stays.

    Args:
        checkpoints: the committed ones, in any order.
        recent_keep: how many of those that are kept as recent stay, the newest ones.
        best_step: the step of the best validation so far.

    Returns:
        By id the kinds under which a checkpoint stays: permanent and final ones always, the best
        one, the last `recent_keep` recent ones, and the newest one whatever it is.
    """
    ordered = sorted(checkpoints, key=lambda c: c.step, reverse=True)
    recent = [c.id for c in ordered if "recent" in c.kinds][:recent_keep]
    kept = {}
    for i, checkpoint in enumerate(ordered):
        kinds = checkpoint.kinds & _LASTING
        if checkpoint.id in recent:
            kinds |= {"recent"}
        if checkpoint.step == best_step and "best" in checkpoint.kinds:
            kinds |= {"best"}
        if kinds or i == 0:
            kept[checkpoint.id] = kinds or checkpoint.kinds
    return kept
