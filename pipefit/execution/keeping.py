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
        one, the last `recent_keep` recent ones, the newest one whatever it is, and the newest one
        that would be there had nobody asked the run to stop: see `planned`.
    """
    ordered = sorted(checkpoints, key=lambda c: c.step, reverse=True)
    newest = [c.id for found in (ordered, planned(ordered)) for c in found[:1]]
    recent = [c.id for c in ordered if "recent" in c.kinds][:recent_keep]
    kept = {}
    for checkpoint in ordered:
        kinds = checkpoint.kinds & _LASTING
        if checkpoint.id in recent:
            kinds |= {"recent"}
        if checkpoint.step == best_step and "best" in checkpoint.kinds:
            kinds |= {"best"}
        if kinds or checkpoint.id in newest:
            kept[checkpoint.id] = kinds or checkpoint.kinds
    return kept


def planned(checkpoints: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    """Without those that are there only because the run was asked to stop.

    A run is rolled back to one of these, so that stopping and continuing it changes no number.
    """
    return [checkpoint for checkpoint in checkpoints if checkpoint.kinds != {"stopped"}]
