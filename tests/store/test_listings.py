"""What lists and tells of runs downloads nothing."""

import numpy as np
from actors import COLLECTION, PERMANENT, images, order, reader, started, state, validation
from click.testing import CliRunner
from recorder import RECORDER

from pipefit.cli import main
from pipefit.records import RunState
from pipefit.spec import read_spec
from pipefit.store import open_store


def chunks(seen):
    """How many documents of chunks were in the replies."""
    batches = [reply["cursor"] for name, reply in seen if name in ("find", "getMore", "aggregate")]
    documents = [d for batch in batches for d in batch.get("firstBatch", batch.get("nextBatch"))]
    return sum("files_id" in document for document in documents)


def full_run(store):
    """A run with something in every place where there can be files."""
    spec = read_spec("configs/digits.toml", {"name": "a", "collection": COLLECTION})
    writer = started(store, spec=spec.to_json(), identity=spec.identity)
    writer.write_metrics(images(1, 20))
    writer.describe({"parameters": 7}, {"model.txt": b"text"})
    roc = {"roc": np.ones((1000, 2)), "count": np.int64(3)}
    for step in (10, 20):
        info = writer.commit(step, state(step), PERMANENT)
        writer.write_validation(validation(step, values=roc))
    outputs = store.outputs_writer(COLLECTION, "a", "test")
    outputs.add({"logits": np.ones((100, 4), np.float32)})
    store.commit_validation(COLLECTION, "a", info, validation(20, values=roc), outputs.close())
    store.put_artifact(COLLECTION, "a", "report.html", 20, b"<p>")
    store.write_summary(COLLECTION, "a", 20, {"step": 20})
    writer.end(RunState.FINISHED, None, 20, "log")
    store.rewind(COLLECTION, "a", 10)
    return spec


def test_listings_download_nothing(store, environment):
    spec = full_run(store)
    again = order(spec=spec.to_json(), identity=spec.identity)
    run = reader(store)
    asked = {
        "runs": store.runs,
        "collections": store.collections,
        "statuses": lambda: store.statuses(COLLECTION, ["a"]),
        "committed": lambda: store.committed(COLLECTION, [("a", 10)]),
        "validated": lambda: store.validated(COLLECTION, [("a", "test", 10)]),
        "summary": lambda: store.summary(COLLECTION, "a", 10),
        "identity": lambda: store.check_identity(again),
        "lease": lambda: store.lease(COLLECTION, "a"),
        "garbage": lambda: store.garbage(COLLECTION),
        **{
            name: getattr(run, name)
            for name in ("status", "document", "attempts", "lines", "checkpoints", "checkpoint")
        },
        "validations": run.validations,
        "metrics": run.metrics,  # small values lie in the records
        "tensors": run.tensors,
        "values": lambda: run.values("image").steps,
        "line": lambda: run.line(1).validations(),
        "outputs": lambda: len(run.line(1).outputs("test")),
        "report": lambda: run.find_artifact("report.html"),
    }
    told = {}
    for name, ask in asked.items():
        with RECORDER.recording() as seen:
            ask()
        assert seen, name
        told[name] = chunks(seen)
    for words in (["runs"], ["show", "a"], ["show", "a", "--lines"], ["show", "a", "--toml"]):
        with RECORDER.recording() as seen:
            done = CliRunner().invoke(main, words, catch_exceptions=False)
        assert done.exit_code == 0 and done.stdout, done.output
        assert seen, words
        told[" ".join(words)] = chunks(seen)

    assert told == dict.fromkeys(told, 0)
    with RECORDER.recording() as seen:
        open_store(environment["PIPEFIT_MONGO_URI"], cache=False).run("a", COLLECTION).weights()
    assert chunks(seen) == 1  # so they would have been seen
