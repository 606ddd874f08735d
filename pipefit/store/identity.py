"""Whether a run of this name is the same experiment, and what differs if it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipefit.errors import IdentityMismatch, hide_in_addresses, is_secret_key
from pipefit.records import RunOrder
from pipefit.store.plain import plain

#: Of the content of the training data: kept in a run's program from its first attempt on.
DATA_DIGEST = "data_digest"

#: How the identity of a run begins that another tool has made, which follows, and a colon.
IMPORTED = "imported:"

_ABSENT = "(absent)"
_DATA_KEY = "data.digest"
_SHOWN = 200  # characters of a value in a message


@dataclass(frozen=True)
class Change:
    """One dotted key whose value differs; the values as JSON text, "(absent)" for none."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        if is_secret_key(self.key.rpartition(".")[2]):  # as earlier versions have stored
            return f"{self.key}: *** -> ***"
        return f"{self.key}: {_short(self.old)} -> {_short(self.new)}"

    def allowed_by(self, keys: Sequence[str]) -> bool:
        """Whether one of the keys is this one or a dotted prefix of it."""
        return any(self.key == key or self.key.startswith(f"{key}.") for key in keys)


def accepted_changes(run: Mapping[str, Any], order: RunOrder) -> list[Change]:
    """What the order changes in the identity of the stored run, or its data; all of it is allowed.

    Raises:
        IdentityMismatch: something differs that `order.allow_change` does not cover.
    """
    _check_own(run, order)
    changes = [*_changes(run, order), *_change_of_data(run, order)]
    refused = [change for change in changes if not change.allowed_by(order.allow_change)]
    if not refused:
        return changes
    made = "made by another experiment"
    if [change.key for change in changes] == [_DATA_KEY]:
        made = "trained on data with other content"
    lines = [
        f"run {order.name!r} of collection {order.collection!r} was {made} "
        f"({len(changes)} {'difference' if len(changes) == 1 else 'differences'}): choose another "
        "name, or accept a difference with --allow-change KEY"
    ]
    for key in order.allow_change:
        if not any(change.allowed_by([key]) for change in changes):
            lines[0] += f"; --allow-change {key} is none of them"
    lines += [f"{c}{'' if c in refused else '  (allowed)'}" for c in changes]
    raise IdentityMismatch("\n".join(lines))


def _check_own(run: Mapping[str, Any], order: RunOrder) -> None:
    """Raise `IdentityMismatch` for a run that another tool has made, whatever is allowed."""
    if run["identity"].startswith(IMPORTED):
        tool = run["identity"].split(":")[1]
        raise IdentityMismatch(
            f"run {order.name!r} of collection {order.collection!r} was imported from {tool}, and "
            "is no experiment that can be continued: choose another name, and begin with its "
            f'weights by [[load]] from = {{ name = "{order.name}", step = ... }}'
        )


def _changes(run: Mapping[str, Any], order: RunOrder) -> list[Change]:
    if run["identity"] == order.identity:
        return []
    old = _texts(json.loads(run["parts"]))
    new = _texts(plain(order.parts))
    changes = [
        Change(key, old.get(key, _ABSENT), new.get(key, _ABSENT))
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    ]
    # The hash may also be made in another way than it was.
    return changes or [Change("identity", run["identity"], order.identity)]


def _change_of_data(run: Mapping[str, Any], order: RunOrder) -> list[Change]:
    stored = json.loads(run["program"]).get(DATA_DIGEST)
    # Runs of before digests were kept, and orders of those who have not read the data, have none.
    if None in (stored, order.data_digest) or stored == order.data_digest:
        return []
    return [Change(_DATA_KEY, json.dumps(stored), json.dumps(order.data_digest))]


def program_text(order: RunOrder, run: Mapping[str, Any] | None) -> str:
    """What made the run as it is stored, with the digest of its data.

    Args:
        order: of the new owner.
        run: the document of the run as it was before; None for a new run.
    """
    digest = order.data_digest
    if digest is None and run is not None:
        digest = json.loads(run["program"]).get(DATA_DIGEST)
    known = {} if digest is None else {DATA_DIGEST: digest}
    return json.dumps({**plain(order.program), **known})


def _texts(parts: Mapping[str, Any]) -> dict[str, str]:
    # As text, because NaN differs from itself and 1 does not differ from 1.0 or true.
    return {key: json.dumps(value, sort_keys=True) for key, value in parts.items()}


def _short(text: str) -> str:
    text = hide_in_addresses(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
