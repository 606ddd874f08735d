"""What an archive of runs has: plain files that other programs can read, too.

    files/<sha256>           the bytes of a checkpoint (safetensors), of outputs per example
                             (likewise), of a report, of large values of a step
    runs/1/records.jsonl     one record per line: metrics, validations, checkpoints, attempts, ...
    runs/1/run.json          the run itself: experiment, identity, state, history, ...
    runs/2/...
    manifest.json            last: the runs, and the size and sha256 of every other member

The fields of runs and records are told in `pipefit.store.content` and `pipefit.store.documents`;
what JSON lacks is written as `pipefit.store.jsontext` tells, bytes as {"$bytes": "<base64>"}, say.
Members have no times and no owners.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Of this layout. Archives of older versions must be readable for ever, newer ones are refused.
VERSION = 1

FORMAT = "runs of Pipefit"
MANIFEST = "manifest.json"
RECORDS, RUN = "records.jsonl", "run.json"


@dataclass(frozen=True)
class Member:
    """The size and sha256 of a member."""

    size: int
    sha256: str


def file_member(sha256: str) -> str:
    """The member with the bytes of this hash."""
    return f"files/{sha256}"


def folder_of(number: int) -> str:
    """Where the members of the `number`-th run are."""
    return f"runs/{number}"
