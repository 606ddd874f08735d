"""What a data source is: what a `[data.NAME]` table's builder returns.

A source knows its number of examples and gives any of them by index; it holds no position, so two
runs may share one, and nothing of it has to be saved.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipefit.data.fields import Fields, FieldSpec, check_fields
from pipefit.data.order import Indices, examples
from pipefit.errors import DataError


@runtime_checkable
class Source(Protocol):
    """Examples by index; the same index always gives the same example.

    It may have more methods:

        order(seed, start, count)   which examples stand at the positions start, start + 1, ...;
                                    an own order in place of the permutations of `examples`, and
                                    like them a pure function
        digest()                    another text for another content, see `content_digest`
        close()                     called when nothing is read any more
    """

    def __len__(self) -> int:
        """Number of examples, at least 1."""

    def take(self, indices: npt.NDArray[np.int64]) -> Fields:
        """The examples of these indices: arrays of shape [len(indices), ...] by field name.

        Called from several threads at once.
        """


def indexable(thing: Any) -> bool:
    """Whether something is a source that gives examples by index.

    A `tf.data.Dataset` is none: its `take` is another one.
    """
    return (
        not isinstance(thing, type)
        and isinstance(thing, Source)
        and not hasattr(thing, "element_spec")
    )


def field_specs(source: Any) -> dict[str, FieldSpec]:
    """What a source gives, read off its first example.

    Raises:
        DataError: if it is no source, is empty, or gives something that is not [1, ...] arrays.
    """
    if not indexable(source):
        raise DataError(
            f"{source!r} is not a data source: it needs __len__() and take(indices), which "
            f"returns a dict of arrays"
        )
    if len(source) < 1:
        raise DataError(f"{type(source).__name__} has no examples; at least one is needed")
    return check_fields(source.take(np.zeros(1, np.int64)), 1, None, type(source).__name__)


def order_of(source: Source, *, seed: int, start: int, count: int) -> Indices:
    """Which examples of a source stand at the positions start, start + 1, ...

    Its own order if it has one, else that of `examples`.

    Args:
        source: the source.
        seed: of the run, not negative.
        start: first position, not negative.
        count: how many.

    Returns:
        int64 array of shape [count].
    """
    own = getattr(source, "order", None)
    if own is None:
        return examples(seed=seed, start=start, count=count, n=len(source))
    found: Indices = own(seed=seed, start=start, count=count)
    return found
