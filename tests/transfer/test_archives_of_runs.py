"""Runs in one file: the same there and back, and refused if the file is anything else."""

import fcntl
import hashlib
import io
import json
import os
import tarfile
import threading

import numpy as np
import pymongo
import pytest
import safetensors.numpy
from bson import ObjectId

from pipefit.errors import ArchiveError, CheckpointCorrupt, NotFound, StoreError
from pipefit.records import Best, MetricBlock, RunOrder, RunState, Validation
from pipefit.store import jsontext, open_store, server, this_process
from pipefit.transfer import export_runs, import_runs

PERMANENT = frozenset({"permanent"})


@pytest.fixture
def other(mongo_uri):
    """An empty store on another database."""
    name = f"test-other-{os.getpid()}"
    yield open_store(mongo_uri.replace(f"/{server.DATABASE}?", f"/{name}?"))
    with pymongo.MongoClient(mongo_uri) as client:
        client.drop_database(name)


def tensors(value, step):
    return {"w": np.full(100_000, value, np.float32), "step": np.asarray(step)}


def trained(store, name="night/mlp", value=1.0, steps=(10, 20), start=-1):
    """A run of the collection "digits" with values of every kind."""
    order = RunOrder("digits", name, "1", {"seed": 0}, '{"x": 1}', steps=40)
    writer = store.acquire(order, this_process(), ttl=600)
    writer.begin(start)
    for step in steps:
        loss = np.arange(step - 9, step + 1, dtype=np.float64)
        image = np.tile(loss[:, None], (1, 500))
        writer.write_metrics(MetricBlock(step - 9, {"loss": loss, "image": image}))
        info = writer.commit(
            step, tensors(value + step, step), PERMANENT, Best("a", "max", 0.5, step)
        )
    writer.describe({"parameters": 7}, {"model.txt": b"model"})
    writer.end(RunState.INTERRUPTED, "enough", steps[-1], "the log")
    outputs = store.outputs_writer("digits", name, "test")
    outputs.add({"x": np.ones((4, 3))})
    validation = Validation("test", steps[-1], {"a": 0.5}, 4, values={"roc": np.ones(1000)})
    store.commit_validation("digits", name, info, validation, outputs.close())
    store.put_artifact("digits", name, "report.html", steps[-1], b"<p>report")
    return store.run(name, "digits")


def members(path):
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def packed(path, content, kind=None, link=""):
    """An archive with these members."""
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = 0 if kind and name == "evil" else len(data)
            if kind and name == "evil":
                info.type, info.linkname = kind, link
            tar.addfile(info, io.BytesIO(data))
    return path


def signed(content):
    """The members with a manifest that fits them."""
    manifest = json.loads(content["manifest.json"])
    manifest["members"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in content.items()
        if name != "manifest.json"
    }
    return {**content, "manifest.json": json.dumps(manifest).encode()}


def test_a_run_goes_to_another_database_with_the_same_bytes_and_goes_on(store, other, tmp_path):
    run = trained(store)
    done = export_runs(store, tmp_path / "a.tar", "digits", ["night/mlp"])
    [imported] = import_runs(other, tmp_path / "a.tar")

    assert done.runs == ("night/mlp",) and done.size == (tmp_path / "a.tar").stat().st_size
    assert done.sha256 == hashlib.sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    assert (imported.collection, imported.name, imported.new) == ("digits", "night/mlp", True)
    there = other.run("night/mlp", "digits")
    assert there.checkpoints().equals(run.checkpoints())
    assert there.metrics().equals(run.metrics()) and there.validations().equals(run.validations())
    assert there.weights()["w"][0] == 21.0 and there.artifact("model.txt") == b"model"
    assert there.outputs("test")["x"].sum() == 12 and there.artifact("report.html") == b"<p>report"
    for place in (store, other):
        trained(place, start=20, steps=(30, 40), value=5.0)
    assert there.metrics().equals(run.metrics())
    assert there.checkpoints()["sha256"].equals(run.checkpoints()["sha256"])
    assert len(there.attempts()) == 2


def test_the_same_runs_give_the_same_bytes_from_wherever_they_are(store, other, tmp_path):
    for name in ("b", "a/x", "A"):
        trained(store, name)
    paths = [tmp_path / f"{n}.tar" for n in range(4)]
    first = export_runs(store, paths[0], "digits")
    export_runs(store, paths[1], "digits")
    import_runs(other, paths[0])
    export_runs(other, paths[2], "digits")
    folder = open_store((tmp_path / "folder").as_uri())
    import_runs(folder, paths[0])
    export_runs(folder, paths[3], "digits")

    assert first.runs == ("A", "a/x", "b")
    assert len({path.read_bytes() for path in paths}) == 1
    assert [run.new for run in import_runs(store, paths[3])] == [False] * 3


def test_the_layout_is_as_it_is_documented(store, tmp_path):
    run = trained(store)
    export_runs(store, tmp_path / "a.tar", "digits")
    content = members(tmp_path / "a.tar")

    manifest = json.loads(content["manifest.json"])
    assert (manifest["format"], manifest["version"]) == ("runs of Pipefit", 1)
    told = {"collection": "digits", "name": "night/mlp", "folder": "runs/1"}
    assert manifest["runs"] == [told]
    assert list(content)[-1] == "manifest.json"
    assert manifest["members"].keys() == content.keys() - {"manifest.json"}
    document = json.loads(content["runs/1/run.json"])
    assert (document["steps"], document["committed"]["step"]) == (40, 20)
    records = [json.loads(line) for line in content["runs/1/records.jsonl"].splitlines()]
    newest = max((r for r in records if r["kind"] == "checkpoint"), key=lambda r: r["step"])
    assert newest["sha256"] == run.checkpoint().sha256
    state = safetensors.numpy.load(content[f"files/{newest['sha256']}"])
    assert state["w"][0] == 21.0
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert {(i.mtime, i.uid, i.gid, i.uname, i.mode) for i in tar} == {(0, 0, 0, "", 0o644)}


def test_what_runs_share_is_in_the_archive_once(store, tmp_path):
    for name in ("a", "b"):
        trained(store, name)
    export_runs(store, tmp_path / "a.tar", "digits")
    alone = export_runs(store, tmp_path / "b.tar", "digits", ["a"])

    assert (tmp_path / "a.tar").stat().st_size < 1.1 * alone.size


def test_a_run_that_is_trained_meanwhile_can_be_exported(store, tmp_path):
    trained(store, "busy", steps=(10,))
    stop = threading.Event()

    def train():
        order = RunOrder("digits", "busy", "1", {"seed": 0}, '{"x": 1}', steps=10**6)
        writer = store.acquire(order, this_process(), ttl=600)
        writer.begin(10)
        step = 10
        while not stop.is_set():
            step += 1
            writer.write_metrics(MetricBlock(step, {"image": np.full((1, 500), step)}))
            writer.commit(step, tensors(step, step), PERMANENT)
            newest = sorted(writer.checkpoints(), key=lambda c: c.step)[-3:]
            writer.retain({info.id: info.kinds for info in newest})

    training = threading.Thread(target=train)
    training.start()
    try:
        for number in range(4):
            path = tmp_path / f"{number}.tar"
            export_runs(store, path, "digits")
            other = open_store((tmp_path / f"store-{number}").as_uri())
            import_runs(other, path)
            run = other.run("busy", "digits")
            steps = run.checkpoints()["step"].tolist()
            assert run.status().step == steps[-1]
            assert all(run.weights(step)["step"] == step for step in steps)
            assert len(run.values("image")) >= steps[-1] - 1
    finally:
        stop.set()
        training.join()


def test_another_run_of_that_name_is_refused_before_anything_is_written(store, other, tmp_path):
    for name in ("a", "b", "c"):
        trained(store, name)
    export_runs(store, tmp_path / "a.tar", "digits")
    trained(other, "c", value=7.0)

    with pytest.raises(StoreError, match="'digits' has another run 'c' already"):
        import_runs(other, tmp_path / "a.tar")
    assert other.runs()["name"].tolist() == ["c"]
    assert other.run("c", "digits").weights()["w"][0] == 27.0


def test_an_import_that_was_interrupted_is_repeated(store, other, tmp_path, monkeypatch):
    for name in ("a", "b"):
        trained(store, name)
    export_runs(store, tmp_path / "a.tar", "digits")

    def interrupted(name):
        if name == "b":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_runs(other, tmp_path / "a.tar", tell=interrupted)
    again = import_runs(other, tmp_path / "a.tar")
    assert [(run.name, run.new) for run in again] == [("a", False), ("b", True)]


@pytest.fixture
def archive(store, tmp_path):
    trained(store, "a")
    export_runs(store, tmp_path / "a.tar", "digits")
    return tmp_path / "a.tar"


def refused(other, path, match):
    with pytest.raises((ArchiveError, StoreError, CheckpointCorrupt), match=match) as error:
        import_runs(other, path)
    assert other.collections() == [] and other.garbage(grace=0.0) == []
    assert str(path) in str(error.value) or isinstance(error.value, StoreError)
    return str(error.value)


@pytest.mark.parametrize("at", [100, 515, 200_000, 600_000])
def test_a_flipped_bit_is_found_wherever_it_is(other, archive, at):
    data = bytearray(archive.read_bytes())
    data[at] ^= 1
    archive.write_bytes(data)
    refused(other, archive, "no whole archive of runs|not a whole tar")


@pytest.mark.parametrize("size", [0, 100, 10_000, 0.5, -11_000])
def test_an_archive_that_was_cut_off_is_refused(other, archive, size):
    data = archive.read_bytes()
    kept = int(size * len(data)) if isinstance(size, float) else size
    archive.write_bytes(data[:kept])
    refused(other, archive, "no whole archive|not a whole tar|cannot be read")


def test_what_is_no_archive_of_runs_is_refused(other, archive, tmp_path):
    refused(other, packed(tmp_path / "x.tar", {"a": b"1"}), "it has no manifest.json")
    refused(other, packed(tmp_path / "y.tar", {"manifest.json": b"{}"}), "is of something else")
    refused(other, packed(tmp_path / "z.tar", {"manifest.json": b"[" * 9999}), "cannot be read")
    newer = json.dumps({"format": "runs of Pipefit", "version": 2}).encode()
    text = refused(other, packed(tmp_path / "n.tar", {"manifest.json": newer}), "of version 2")
    assert "install a newer Pipefit" in text
    (tmp_path / "t.tar").write_text("text")
    refused(other, tmp_path / "t.tar", "not a whole tar or zip archive")
    with pytest.raises(ArchiveError, match="cannot be read: No such file"):
        import_runs(other, tmp_path / "nothing.tar")


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "files/../../evil", "a\\b", "C:evil"])
def test_members_that_lead_outside_are_refused(other, archive, name):
    content = {**members(archive), name: b"evil"}
    packed(archive, signed(content))
    refused(other, archive, "only plain files and folders with relative names")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(other, archive, kind):
    content = {**members(archive), "evil": b""}
    packed(archive, signed(content), kind, "/etc/passwd")
    refused(other, archive, "'evil' is a")


def test_members_that_none_has_and_members_that_lack_are_refused(other, archive):
    content = members(archive)
    more = {**content, "more": b"x"}
    refused(other, packed(archive, more), "has the unknown member 'more'")
    first = next(iter(content))
    less = {name: data for name, data in content.items() if name != first}
    refused(other, packed(archive, less), f"lacks the member '{first}'")
    refused(other, packed(archive, signed(less)), f"lacks the member '{first}'")


def changed(content, change, number=0):
    """The archive with another record or, without a number, another document."""
    name = "runs/1/run.json" if number is None else "runs/1/records.jsonl"
    lines = content[name].splitlines()
    told = jsontext.decode(lines[number or 0])
    change(told)
    lines[number or 0] = jsontext.encode(told).encode()
    return signed({**content, name: b"\n".join(lines) + b"\n"})


@pytest.mark.parametrize(
    "change, number",
    [
        (lambda told: told.update(lease={"owner": 1}), None),
        (lambda told: told.update(fence="1"), None),
        (lambda told: told.update(described={"model": "null", "artifacts": [{}]}), None),
        (lambda told: told.update(kind={"$gt": ""}), 0),
        (lambda told: told.update(sha256="../../etc/passwd"), 0),
        (lambda told: told.update(size=10**15), 0),
        (lambda told: told.update(run="another"), 0),
        (lambda told: told.update(step=[1]), 0),
    ],
)
def test_hostile_records_are_refused_although_every_hash_fits(other, archive, change, number):
    good = archive.read_bytes()
    packed(archive, changed(members(archive), change, number))
    refused(other, archive, "no run that Pipefit|does not say|lacks the member|other bytes")

    hostile = archive.read_bytes()
    archive.write_bytes(good)
    import_runs(other, archive)
    archive.write_bytes(hostile)
    with pytest.raises(StoreError, match=r"no run that|does not say|lacks the|another run"):
        import_runs(other, archive)


@pytest.mark.parametrize("checkpoint", [7, None, {"$ne": ""}])
def test_ids_that_are_none_are_refused_beside_the_run_itself(other, store, archive, checkpoint):
    import_runs(other, archive)
    lines = members(archive)["runs/1/records.jsonl"].splitlines()
    number = [jsontext.decode(line)["kind"] for line in lines].index("checkpoint")
    change = {"name": checkpoint}
    packed(archive, changed(members(archive), lambda told: told.update(change), number))
    with pytest.raises(StoreError, match="this is no run that Pipefit has written"):
        import_runs(other, archive)


@pytest.mark.parametrize(
    "told", [{"name": "../../evil"}, {"name": {"$ne": 1}}, {"collection": "a.b"}, {"name": "a b"}]
)
def test_names_of_runs_cannot_lead_elsewhere(other, archive, told):
    content = members(archive)
    manifest = json.loads(content["manifest.json"])
    manifest["runs"][0].update(told)
    packed(archive, {**content, "manifest.json": json.dumps(manifest).encode()})
    refused(other, archive, "cannot name a|is not complete")


def test_an_archive_that_cannot_be_written_leaves_nothing(store, tmp_path, archive):
    before = archive.read_bytes()
    with pytest.raises(ArchiveError, match=r"a.tar exists already: remove it"):
        export_runs(store, archive, "digits")
    with pytest.raises(ArchiveError, match="cannot be written: No such file"):
        export_runs(store, tmp_path / "nowhere" / "b.tar", "digits")
    with pytest.raises(NotFound, match="there is no run 'b'"):
        export_runs(store, tmp_path / "b.tar", "digits", ["a", "b"])
    with pytest.raises(NotFound, match=r"collection 'other' of mongodb://.* has no runs"):
        export_runs(store, tmp_path / "b.tar", "other")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.tar"]
    assert archive.read_bytes() == before


def test_what_a_killed_export_has_left_is_removed_by_the_next(store, tmp_path):
    trained(store, "a")
    dead, alive, of_another = (
        tmp_path / name for name in (".a.tar.00aa.draft", ".a.tar.11bb.draft", ".b.tar.22cc.draft")
    )
    for draft in (dead, alive, of_another):
        draft.write_bytes(b"half of it")
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        export_runs(store, tmp_path / "a.tar", "digits")
    assert not dead.exists() and alive.exists() and of_another.exists()


def test_damage_of_all_but_checkpoints_is_named_and_not_exported(store, tmp_path):
    run = trained(store, "a")
    chunks = store.connection.database["digits.artifacts.chunks"]
    chunks.update_many({}, {"$set": {"data": b"damage"}})

    with pytest.raises(CheckpointCorrupt, match="run 'a' is damaged"):
        export_runs(store, tmp_path / "a.tar", "digits")
    assert list(tmp_path.iterdir()) == [] and run.status().step == 20


def test_a_damaged_checkpoint_is_left_out_unless_it_is_to_be_strict(store, other, tmp_path, caplog):
    run = trained(store, steps=(10, 20, 30))
    for step in (10, 30):
        damage(store, run.checkpoint(step))

    with pytest.raises(CheckpointCorrupt, match="step 10 of run 'night/mlp' is damaged"):
        export_runs(store, tmp_path / "strict.tar", "digits", ["night/mlp"], strict=True)
    assert not list(tmp_path.iterdir()) and not caplog.records
    export_runs(store, tmp_path / "a.tar", "digits", ["night/mlp"])
    told = [record.getMessage() for record in caplog.records]
    for step, line in zip((10, 30), told, strict=True):
        assert line.startswith(f"the checkpoint of step {step} of run 'night/mlp' is damaged: ")
        assert line.endswith("; it is left out")

    import_runs(other, tmp_path / "a.tar")
    found = other.run("night/mlp", "digits")
    assert found.checkpoints()["step"].tolist() == [20]
    assert found.status().step == 20 and found.status().state == "INTERRUPTED"
    assert "its checkpoint of step 30 was damaged" in found.status().reason
    assert found.weights(strict=True)["step"] == 20 and found.document()["best"]["step"] == 20
    assert "test" not in found.validations()["set"].tolist()  # it was of step 30
    again = trained(other, steps=(30, 40), start=20)
    assert again.metrics().index.tolist() == list(range(1, 41))
    assert again.checkpoints()["step"].tolist() == [20, 30, 40]


def damage(store, checkpoint):
    """Flip one bit of the bytes of a stored checkpoint."""
    chunks = store.connection.database["digits.checkpoints.chunks"]
    chunk = chunks.find_one({"files_id": ObjectId(checkpoint.id)}, sort=[("n", -1)])
    data = bytearray(chunk["data"])
    data[-1] ^= 1
    chunks.update_one({"_id": chunk["_id"]}, {"$set": {"data": bytes(data)}})
