"""What processes do to runs, each as: what goes before, the deed, and what a reader sees of it."""

import functools
from functools import partial

import numpy as np
from actors import (
    COLLECTION,
    EARLY,
    PERMANENT,
    acquire,
    dead_process,
    images,
    reader,
    started,
    state,
    validation,
)

from pipefit.records import RunState

dead = functools.cache(dead_process)


def with_checkpoint(store, name, **others):
    writer = started(store, name, **others)
    writer.commit(10, state(1.0), PERMANENT)
    return writer


def with_three(store, name, **others):
    writer = with_checkpoint(store, name, **others)
    for step in (20, 30):
        writer.commit(step, state(2.0), PERMANENT)
    return writer


def with_all(store, name, value=1.0, **others):
    writer = with_checkpoint(store, name, **others)
    write_all(writer, value)
    return writer


def write_all(writer, value, first=11):
    writer.write_metrics(images(first, first + 2, value=value))
    writer.write_validation(
        validation(
            first + 2, accuracy=value, values={"roc": np.full(1000, value), "one": np.ones(3)}
        )
    )
    writer.describe({"n": value}, {"a": str(value).encode(), "b": str(value).encode()})


def checkpoints(run):
    table = run.checkpoints()
    return [(step, float(run.weights(step)["step"])) for step in table["step"]], run.status().step


def metrics(run):
    return {float(np.unique(a).item()) for _, a in run.values("image")} | set(run.metrics()["loss"])


def validations(run):
    return {float(np.unique(a).item()) for _, a in run.values("test/roc")} | set(
        run.validations()["accuracy"]
    )


def description(run):
    return {run.document()["model"]["n"], float(run.artifact("a")), float(run.artifact("b"))}


def notes(run):
    return len(run.document()["history"])


def outcome(run):
    (attempt,) = run.attempts()
    # Of an owner that died it says which process that was: another one each time.
    reason = attempt.reason and attempt.reason.replace(str(attempt.owner.pid), "PID")
    return run.status().ended, attempt.state, attempt.log_tail, reason


OWNERS = {
    "commit again": (
        with_checkpoint,
        lambda writer: writer.commit(10, state(2.0), PERMANENT),
        checkpoints,
    ),
    "commit": (
        with_checkpoint,
        lambda writer: writer.commit(20, state(2.0), PERMANENT),
        checkpoints,
    ),
    "retain": (with_three, lambda writer: writer.retain({}), checkpoints),
    "metrics": (
        with_all,
        lambda writer: writer.write_metrics(images(11, 13, value=2.0)),
        metrics,
    ),
    "validation": (
        with_all,
        lambda writer: writer.write_validation(
            validation(13, accuracy=2.0, values={"roc": np.full(1000, 2.0)})
        ),
        validations,
    ),
    "describe": (
        with_all,
        lambda writer: writer.describe({"n": 2.0}, {"a": b"2.0", "b": b"2.0"}),
        description,
    ),
    "note": (with_all, lambda writer: writer.note({"event": "rollback"}), notes),
    "end": (
        with_all,
        lambda writer: writer.end(RunState.FINISHED, None, 13, "bye", EARLY),
        outcome,
    ),
}


def interrupted(store, name):
    """A run whose owner is dead, and the function that takes it over."""
    with_all(store, name, owner=dead())
    return partial(acquire, store, name)


def taken_over(store, name, **others):
    """The same, which has been taken over."""
    with_all(store, name, owner=dead())
    return acquire(store, name, **others)


def lines(run):
    return len(run.attempts()), run.document()["line"], run.status().step, len(run.metrics())


BEGIN = (taken_over, lambda writer: writer.begin(10), lines)

OTHERS = {
    "acquire": (interrupted, lambda take: take(), lines),
    "begin": BEGIN,
    "rewind": (
        lambda store, name: with_three(store, name, owner=dead()) and (store, name),
        lambda it: it[0].rewind(COLLECTION, it[1], 20),
        checkpoints,
    ),
    "artifact": (
        lambda store, name: report(store, name, b"1") and partial(report, store, name),
        lambda put: put(b"2"),
        lambda run: run.artifact("report.html"),
    ),
    "outputs": (
        lambda store, name: validated(store, name, 1.0) or partial(validated, store, name),
        lambda put: put(2.0),
        lambda run: (
            float(run.outputs("test")["x"].item()),
            list(run.validations()["accuracy"]),
        ),
    ),
    "summary": (
        lambda store, name: summed(store, name, 1.0) or partial(summed, store, name),
        lambda put: put(2.0),
        lambda run: run.summary_of_10,
    ),
}


def report(store, name, data):
    if name not in store.statuses(COLLECTION, [name]):
        with_checkpoint(store, name)
    return store.put_artifact(COLLECTION, name, "report.html", 10, data)


def validated(store, name, value):
    if name not in store.statuses(COLLECTION, [name]):
        with_checkpoint(store, name)
    writer = store.outputs_writer(COLLECTION, name, "test")
    writer.add({"x": np.full((1, 1), value)})
    given = validation(10, accuracy=value, examples=1)
    store.commit_validation(
        COLLECTION, name, reader(store, name).checkpoint(10), given, writer.close()
    )


def summed(store, name, value):
    if name not in store.statuses(COLLECTION, [name]):
        with_checkpoint(store, name)
    store.write_summary(COLLECTION, name, 10, {"value": value})


def seen(store, name, read):
    run = reader(store, name)
    run.summary_of_10 = store.summary(COLLECTION, name, 10)
    return read(run)
