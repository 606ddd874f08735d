"""What is asked about runs before anything is paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipefit.errors import StoreError
from pipefit.records import RunOrder, RunStatus, final_step
from pipefit.spec import Spec
from pipefit.store import Store


def run_order(
    spec: Spec,
    allow_change: Sequence[str] = (),
    program: Mapping[str, Any] | None = None,
    data_digest: str | None = None,
) -> RunOrder:
    """What identifies the run of an experiment in a store.

    Args:
        spec: with one model.
        allow_change: dotted keys in which it may differ from the stored run of its name.
        program: what trains it: plain values.
        data_digest: of the content of its training data, once somebody has read that.
    """
    return RunOrder(
        collection=spec.collection,
        name=spec.name,
        identity=spec.identity,
        parts=spec.parts(),
        spec=spec.to_json(),
        steps=spec.train.steps,
        allow_change=tuple(allow_change),
        program=program or {},
        stop_rules=spec.stop_rules(),
        data_digest=data_digest,
    )


def to_load(store: Store, spec: Spec) -> bool:
    """Whether any run of an experiment has [[load]] and has not begun yet.

    Raises:
        StoreUnavailable: the store cannot be asked.
    """
    names = [run.name for run in spec.runs().values() if run.load]
    statuses = store.statuses(spec.collection, names) if names else {}
    return any(name not in statuses or statuses[name].step is None for name in names)


def completed(store: Store, orders: Sequence[RunOrder]) -> dict[str, int]:
    """The runs that have come to their end, by this very experiment, and at which step each did.

    A run is at its end when the checkpoint of the order's last step is committed, or that of an
    earlier step at which one of the order's rules has ended it.

    Args:
        store: where they are.
        orders: of runs of one collection.

    Raises:
        IdentityMismatch: a run of this name is another experiment.
        StoreError: a run is beyond that step and keeps no checkpoint of it.
        StoreUnavailable: it cannot be asked; this never means "no".
    """
    if not orders:
        return {}
    collection = orders[0].collection
    statuses = store.statuses(collection, [order.name for order in orders])
    wanted = []
    for order in orders:
        status = statuses.get(order.name)
        if status is None:
            continue
        if status.identity == order.identity:
            wanted.append((order.name, final_step(status, order)))
        else:
            # A change that is allowed makes it unfinished: the worker writes it to the history.
            store.check_identity(order)
    found = store.committed(collection, wanted) if wanted else {}
    steps = dict(found.keys())
    for order in orders:
        if order.name not in steps and order.name in statuses:
            _refuse_beyond(statuses[order.name], order)
    return steps


def last_steps(store: Store, orders: Sequence[RunOrder]) -> dict[str, int]:
    """By run the step at which it ends: `train.steps`, unless a rule has ended it before.

    Args:
        store: asked only if an order has rules.
        orders: of runs of one collection.

    Raises:
        StoreUnavailable: it cannot be asked.
    """
    if not any(order.stop_rules for order in orders):
        return {order.name: order.steps for order in orders}
    statuses = store.statuses(orders[0].collection, [order.name for order in orders])
    return {order.name: final_step(statuses.get(order.name), order) for order in orders}


def reached(store: Store, order: RunOrder) -> bool:
    """Whether a run has come to its end; see `completed`."""
    return order.name in completed(store, [order])


def _refuse_beyond(status: RunStatus, order: RunOrder) -> None:
    if status.step is not None and status.step > order.steps:
        raise StoreError(
            f"train.steps = {order.steps}: run {order.name!r} of collection {order.collection!r} "
            f"is beyond it, at step {status.step}, and keeps no checkpoint to end at; set "
            f"train.steps to {status.step} or more, or choose another name"
        )
