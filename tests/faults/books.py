"""Counting documents, files and bytes in the database itself, whatever the store says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pymongo

from pipefit.records import intervals
from pipefit.store import documents
from pipefit.store.backend import Document
from pipefit.store.descriptions import described_files
from pipefit.store.garbage import files_of

#: Records whose number depends on how often a run was begun.
_PER_ATTEMPT = (documents.ATTEMPT,)
#: Records that are named by an id, which is another one in every run.
_BY_ID = (documents.CHECKPOINT, documents.OUTPUTS)


class Books:
    """What a collection holds at the moment.

    Attributes:
        counting: how many records count, as "run kind name step"; of metrics how many rows.
        orphans: files and bytes that nothing names.
        missing: files that are named but not there, or not whole.
        drafts: how many records do not count.
    """

    def __init__(self, uri: str, collection: str):
        with pymongo.MongoClient(uri) as client:
            database = client.get_default_database()
            runs = list(database[f"{collection}.runs"].find())
            records = list(database[f"{collection}.records"].find())
            files, chunks = {}, {}
            for bucket in ("checkpoints", "artifacts"):
                place = database[f"{collection}.{bucket}"]
                files.update({str(f["_id"]): f["length"] for f in place.files.find()})
                sizes = {"_id": "$files_id", "size": {"$sum": {"$binarySize": "$data"}}}
                found = place.chunks.aggregate([{"$group": sizes}])
                chunks.update({str(f["_id"]): f["size"] for f in found})
        named = {key for record in records for _, key in files_of(record)}
        named |= {file.id for run in runs for file in described_files(run).values()}
        counting = [r for run in runs for r in records if _counts(run, r, records)]
        self.counting = _counted(counting) + _rows(runs, counting)
        self.drafts = len(records) - len(counting)
        self.orphans = sorted((files.keys() | chunks.keys()) - named)
        needed = {key for record in counting for _, key in files_of(record)}
        self.missing = sorted(
            key for key in needed if key not in files or files[key] != chunks.get(key, 0)
        )


def _counts(run: Document, record: Document, records: Iterable[Document]) -> bool:
    if record["run"] != run["_id"]:
        return False
    if record["kind"] == documents.OUTPUTS:
        return any(r.get("outputs") == record["name"] for r in records)
    if record["kind"] == documents.CHECKPOINT:
        # A commit that was tried again may have left a second one of its step, for gc to find.
        stored = [r for r in records if r["kind"] == record["kind"] and r["run"] == run["_id"]]
        return record["name"] in {c.id for c in documents.checkpoints_of(run, stored).values()}
    return record["kind"] in _PER_ATTEMPT or documents.counts(run, record)


def _counted(records: Iterable[Document]) -> Counter[str]:
    return Counter(
        f"{r['run']} {r['kind']} {'' if r['kind'] in _BY_ID else r['name']} {r['step']}"
        for r in records
        if r["kind"] not in (*_PER_ATTEMPT, documents.METRICS)
    )


def _rows(runs: Iterable[Document], records: Iterable[Document]) -> Counter[str]:
    """How often every step has its metrics."""
    lines = {run["_id"]: {f: (a, b) for f, a, b in intervals(run["line"])} for run in runs}
    rows: Counter[str] = Counter()
    for record in records:
        if record["kind"] == documents.METRICS:
            lower, upper = lines[record["run"]][record["fence"]]
            first, last = record["step"], record["step"] + record["steps"] - 1
            steps = range(max(first, lower + 1), min(last, upper) + 1)
            rows.update(f"{record['run']} metrics  {step}" for step in steps)
    return rows


def lost(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What is less often in ours."""
    return sorted((Counter(theirs) - Counter(ours)).elements())
