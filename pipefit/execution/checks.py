"""What is asked about a run before anything is paid for."""

from __future__ import annotations

from pipefit.errors import StoreError
from pipefit.records import RunOrder
from pipefit.store import Store


def reached(store: Store, order: RunOrder) -> bool:
    """Whether the checkpoint of the order's last step is committed, by this very experiment.

    Raises:
        IdentityMismatch: the run of this name is another experiment.
        StoreError: the run is beyond that step and keeps no checkpoint of it.
        StoreUnavailable: it cannot be asked; this never means "no".
    """
    status = store.statuses(order.collection, [order.name]).get(order.name)
    if status is None:
        return False
    if status.identity != order.identity:
        store.check_identity(order)
        done = False  # a change that is allowed: the worker writes it to the history
    else:
        done = bool(store.committed(order.collection, [(order.name, order.steps)]))
    if not done and status.step is not None and status.step > order.steps:
        raise StoreError(
            f"train.steps = {order.steps}: run {order.name!r} of collection {order.collection!r} "
            f"is beyond it, at step {status.step}, and keeps no checkpoint to end at; set "
            f"train.steps to {status.step} or more, or choose another name"
        )
    return done
