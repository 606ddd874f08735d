"""Several trainings in one loop on the device, which share what they read: see `Together`."""

from __future__ import annotations

import resource
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipefit.errors import TrainingError
from pipefit.training.feeding.pipeline import Failures, Feed
from pipefit.training.loops.own_loops import HandLoop
from pipefit.training.replicas.devices import Batch
from pipefit.training.state import Arrays, refuse_changed, refuse_unsaved_random
from pipefit.training.trainer import Trainer

#: A feed and the position in it: trainers that agree in both share what is read.
_Place = tuple[Feed, int]


class Together:
    """Repeats the updates of one or several trainers that are at the same step.

        repeat `steps` times inside one tf.function:
            read every feed once
            every trainer: update
        return every trainer's numbers

    The numbers are those that each of the trainers would have alone.
    """

    def __init__(self) -> None:
        self._iterators: dict[_Place, Iterator[Batch]] = {}
        self._functions: dict[tuple[tuple[int, int], ...], Any] = {}
        self._loops: dict[int, HandLoop] = {}
        # Still reading when Python ends, they would wait for ever for their threads: by then they
        # can no longer run the source.
        weakref.finalize(self, self._iterators.clear)

    def run(self, trainers: Sequence[Trainer], steps: int) -> list[Arrays]:
        """Do this many updates of each; see `Trainer.run`."""
        places = list(dict.fromkeys((t.feed, t.position) for t in trainers))
        before = [trainer.updates.done() for trainer in trainers]
        waited = _waited(places)
        begin = time.perf_counter()
        with Failures.surfacing_of(feed.failures for feed, _ in places):
            kept = self._iterators
            iterators = [kept.pop(place) if place in kept else _open(place) for place in places]
            kept.clear()
            sources = [places.index((t.feed, t.position)) for t in trainers]
            do = self._by_hand if any(trainer.loop for trainer in trainers) else self._compiled
            rows = do(trainers, sources, iterators, steps)
        seconds = time.perf_counter() - begin
        waited = _waited(places) - waited
        for trainer, count in zip(trainers, before, strict=True):
            done = trainer.updates.done() - count
            if done != steps:
                raise TrainingError(f"{steps} steps were asked for, the optimizer did {done}")
            trainer.check_copies()
        for (feed, position), iterator in zip(places, iterators, strict=True):
            self._iterators[feed, position + steps * feed.batch_size] = iterator
        for trainer in trainers:
            trainer.step += steps
            trainer.position += steps * trainer.batch_size
        return [
            {**row, **_timing(steps, seconds, waited, trainer.batch_size)}
            for row, trainer in zip(rows, trainers, strict=True)
        ]

    def _compiled(
        self,
        trainers: Sequence[Trainer],
        sources: Sequence[int],
        iterators: list[Iterator[Batch]],
        steps: int,
    ) -> list[Arrays]:
        key = tuple((id(t), source) for t, source in zip(trainers, sources, strict=True))
        unsaved = []
        if key not in self._functions:
            function = tf.function(_Steps(trainers, sources), autograph=False)
            graph = function.get_concrete_function(iterators, tf.constant(1)).graph
            refuse_unsaved_random(graph.as_graph_def())
            unsaved = _unsaved(trainers, graph.variables)
            self._functions[key] = function
        scalars, targets = self._functions[key](iterators, tf.constant(steps))
        scalars = [values.numpy() for values in scalars]  # waits until all is done
        refuse_changed(unsaved)
        return [
            {
                **dict(zip(t.columns, s.T, strict=True)),
                **{name: value.numpy() for name, value in further.items()},
            }
            for t, s, further in zip(trainers, scalars, targets, strict=True)
        ]

    def _by_hand(
        self,
        trainers: Sequence[Trainer],
        sources: Sequence[int],
        iterators: list[Iterator[Batch]],
        steps: int,
    ) -> list[Arrays]:
        """With own loops; several trainers take turns at every batch, so that it is read once."""
        for trainer in trainers:
            if id(trainer) not in self._loops:
                self._loops[id(trainer)] = HandLoop(trainer)
        loops = [self._loops[id(trainer)] for trainer in trainers]
        if len(loops) == 1:
            return [loops[0].run(iterators[0], steps)]
        parts: list[list[Arrays]] = [[] for _ in loops]
        for done in range(steps):
            batches = [next(iterator) for iterator in iterators]
            for loop, source, rows in zip(loops, sources, parts, strict=True):
                rows.append(loop.run(iter([batches[source]]), 1, done))
        return [{k: np.concatenate([r[k] for r in rows]) for k in rows[0]} for rows in parts]


class _Steps:
    """What is compiled: a number of steps of some trainers.

    Args:
        trainers: the trainers.
        sources: for each the index of its iterator.
    """

    def __init__(self, trainers: Sequence[Trainer], sources: Sequence[int]):
        self._trainers, self._sources = trainers, sources

    def __call__(self, iterators: list[Any], steps: tf.Tensor) -> tuple[Any, Any]:
        elements = [iterator.element_spec for iterator in iterators]
        scalars = [
            tf.TensorArray(tf.float32, size=steps, element_shape=[len(t.columns)])
            for t in self._trainers
        ]
        further = [
            {
                name: tf.TensorArray(spec.dtype, size=steps, element_shape=spec.shape)
                for name, spec in _target_specs(t, elements[source]).items()
            }
            for t, source in zip(self._trainers, self._sources, strict=True)
        ]
        _, scalars, further = tf.while_loop(
            lambda i, *_: i < steps,
            lambda i, *rows: self._one(iterators, i, *rows),
            (tf.constant(0), scalars, further),
        )
        stacked = [{name: rows.stack() for name, rows in each.items()} for each in further]
        return [rows.stack() for rows in scalars], stacked

    def _one(self, iterators: list[Any], i: tf.Tensor, *rows: Any) -> tuple[Any, ...]:
        scalars, further = rows
        batches = [next(iterator) for iterator in iterators]
        for k, (trainer, source) in enumerate(zip(self._trainers, self._sources, strict=True)):
            values, targets = trainer.update(batches[source])
            scalars = [*scalars[:k], scalars[k].write(i, values), *scalars[k + 1 :]]
            written = {name: further[k][name].write(i, value) for name, value in targets.items()}
            further = [*further[:k], written, *further[k + 1 :]]
        return i + 1, scalars, further


def _open(place: _Place) -> Iterator[Batch]:
    feed, position = place
    return feed.iterator(position)


def _target_specs(trainer: Trainer, element: dict[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
    """Shapes and dtypes of a trainer's targets; tracing the update once more tells them."""
    if not trainer.targets:
        return {}
    traced = tf.function(lambda batch: trainer.update(batch)[1], autograph=False)
    outputs = traced.get_concrete_function(element).structured_outputs
    return {name: tf.TensorSpec(value.shape, value.dtype) for name, value in outputs.items()}


def _unsaved(
    trainers: Sequence[Trainer], variables: Sequence[Any]
) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    """Variables that no trainer's state holds, with their values now."""
    rest = list(variables)
    for trainer in trainers:
        rest = trainer.state.others(rest)
    return [(variable, variable.numpy()) for variable in rest]


def _waited(places: Sequence[_Place]) -> float:
    return sum(feed.waiting.seconds() for feed in {feed for feed, _ in places})


def _timing(steps: int, seconds: float, waited: float, batch_size: int) -> Arrays:
    """What was measured (`pipefit.records.TIMING`), float32 [steps]: a call's means for each step.

    Args:
        steps: of the call.
        seconds: it took.
        waited: of these, for data.
        batch_size: examples per step.
    """
    measured = {
        "step_seconds": seconds / steps,
        "data_seconds": waited / steps,
        "examples_per_second": batch_size * steps / max(seconds, 1e-9),
        "memory_bytes": _memory(),
    }
    return {name: np.full(steps, value, np.float32) for name, value in measured.items()}


def _memory() -> float:
    """Bytes that this process has had at most: of its GPUs if it uses any, else of the host."""
    if tf.config.list_logical_devices("GPU"):
        gpus = tf.config.list_logical_devices("GPU")
        return float(sum(_gpu_peak(gpu.name) for gpu in gpus))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _gpu_peak(name: str) -> int:
    info = tf.config.experimental.get_memory_info(name.removeprefix("/device:"))
    return int(info["peak"])
