"""What was matched, put into the state of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipefit.errors import LoadError
from pipefit.loading.base import Source, TensorInfo
from pipefit.loading.matching import POSITION, STEP
from pipefit.loading.names import is_counter, of_state
from pipefit.loading.report import Matched, Report

Arrays = dict[str, np.ndarray[Any, Any]]


def facts_of(state: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, TensorInfo]:
    """What a training has, by the names that rules are about."""
    return {
        name: TensorInfo(state[own].dtype.name, state[own].shape, role)
        for own, (name, role) in of_state(state).items()
    }


def filled(
    state: Mapping[str, np.ndarray[Any, Any]],
    found: Report,
    sources: Sequence[Source],
    batch_size: int,
) -> Arrays:
    """The state with all that was matched in it.

    Args:
        state: of a training at step 0, as its checkpoints have it.
        found: what was matched to it.
        sources: in the order of the tables.
        batch_size: examples per update; tells the position of a source that knows its step only.

    Raises:
        LoadError: a tensor is not what its source said.
    """
    named = {name: own for own, (name, _) in of_state(state).items()}
    result = dict(state)
    for number, source in enumerate(sources):
        matches = [m for m in found.loads if m.source == number and m.name != STEP]
        values = source.read([m.own for m in matches])
        for each in matches:
            own = named[each.name]
            result[own] = _fitted(values[each.own], state[own], each, source)
    _follow_weights(result, found)
    _follow_step(result, found, batch_size)
    return result


def _fitted(value: Any, wanted: Any, each: Matched, source: Source) -> Any:
    value = np.asarray(value)
    if each.converted:
        value = value.astype(wanted.dtype)
    if (value.shape, value.dtype) != (wanted.shape, wanted.dtype):
        raise LoadError(
            f"{source.label}: {each.own} is {value.dtype}{list(value.shape)}, which is not what it "
            f"was said to be: it is damaged; use another step or file"
        )
    return value


def _follow_weights(state: Arrays, found: Report) -> None:
    """Averages that are not taken along begin at the weights, as in any training."""
    taken = {m.name for m in found.optimizer.matched}
    for name in state:
        path = name.removeprefix("average/")
        if path != name and name not in taken:
            state[name] = state[f"model/{path}"].astype(state[name].dtype)


def _follow_step(state: Arrays, found: Report, batch_size: int) -> None:
    """What the source does not have of where it was follows from its step."""
    taken = {m.name: m for m in found.course}
    if STEP not in taken:
        return
    step = found.sources[taken[STEP].source].step or 0
    follows = {STEP: step, POSITION: step * batch_size}
    follows |= {name: step for name in state if is_counter(name)}
    for name, value in follows.items():
        if name == STEP or name not in taken:
            state[name] = state[name].dtype.type(value)
