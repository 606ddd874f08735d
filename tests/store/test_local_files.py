"""The store in a folder: addresses, names, damage, folders that are moved, guarded, or gone."""

import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from actors import COLLECTION, PERMANENT, acquire, block, images, reader, started, state, validation

from pipefit.errors import (
    CheckpointCorrupt,
    NotFound,
    StoreAccessDenied,
    StoreError,
    StoreUnavailable,
)
from pipefit.records import RunState
from pipefit.store import open_store
from pipefit.store.local import folder_of, places


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def store(folder):
    return open_store(folder.as_uri())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def place_of(store, name="a"):
    return store._backend(COLLECTION).place_of(name)


def full_run(store, name="a"):
    """A run with something of everything."""
    writer = started(store, name)
    writer.write_metrics(images(1, 10))
    writer.write_validation(validation(10, values={"roc": np.ones(1000)}))
    writer.describe({"parameters": 7}, {"model.txt": b"model"})
    info = writer.commit(10, state(10.0), PERMANENT)
    outputs = store.outputs_writer(COLLECTION, name, "test")
    outputs.add({"x": np.ones((100, 1))})
    store.commit_validation(COLLECTION, name, info, validation(10), outputs.close())
    store.put_artifact(COLLECTION, name, "report", 10, b"report")
    store.write_summary(COLLECTION, name, 10, {"accuracy": 0.5})
    writer.end(RunState.FINISHED, None, 10, "bye")


def check_full_run(store, name="a"):
    run = reader(store, name)
    assert run.status().state is RunState.FINISHED
    assert len(list(run.values("image"))) == len(run.metrics()) == 10
    assert run.artifact("model.txt") == b"model"
    assert len(run.validations()) == len(run.checkpoints()) == len(run.attempts()) == 1
    assert run.weights(include="kernel").keys() == {"dense/kernel"}
    assert run.weights()["step"] == 10
    assert run.outputs("test")["x"].sum() == 100
    assert run.artifact("report") == b"report"
    assert store.summary(COLLECTION, name, 10) == {"accuracy": 0.5}
    assert store.collections() == [COLLECTION]
    assert len(store.runs()) == 1


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///var/results", "/var/results"),
        ("file://localhost/var/my%20results%3F", "/var/my results?"),
        ("file:/var/results/", "/var/results"),
        ("file:results/mine", "HERE/results/mine"),
        ("file:./results", "HERE/results"),
        ("file:~/results", "HOME/results"),
    ],
)
def test_addresses_of_folders(uri, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = os.environ["HOME"]
    assert str(folder_of(uri)) == path.replace("HERE", str(tmp_path)).replace("HOME", home)
    store = open_store(uri)
    assert store.describe() == folder_of(uri).as_uri()
    assert folder_of(store.describe()) == folder_of(uri)


@pytest.mark.parametrize(
    "uri",
    ["file://server/results", "file:", "file://", "file:///a?x=1", "file:///a#b", "file:a%00b"],
)
def test_what_names_no_folder_of_this_machine_is_refused(uri):
    with pytest.raises(StoreError, match="names no folder"):
        open_store(uri)


def test_the_settings_may_name_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "luigi.cfg").write_text("[mongo]\nuri = file:results\n")
    assert open_store().describe() == (tmp_path / "results").as_uri()
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "file:///elsewhere")
    assert open_store().describe() == "file:///elsewhere"


def test_opening_and_reading_make_nothing(store, folder):
    assert store.collections() == []
    assert len(store.runs(COLLECTION)) == 0
    assert store.statuses(COLLECTION, ["a"]) == {}
    with pytest.raises(NotFound):
        reader(store)
    assert not folder.exists()


def test_a_folder_with_something_else_is_left_alone(store, folder):
    folder.mkdir()
    (folder / "thesis.tex").write_text("...")
    for use in (store.collections, lambda: acquire(store), lambda: reader(store)):
        with pytest.raises(StoreError, match=r"is no store of Pipefit, it holds 'thesis\.tex'"):
            use()
    assert names_in(folder) == ["thesis.tex"]


def test_an_empty_folder_becomes_a_store(store, folder):
    folder.mkdir()
    (folder / ".DS_Store").write_text("...")
    acquire(store)

    assert names_in(folder) == [".DS_Store", "digits", "pipefit-store.json"]


def test_a_store_of_a_newer_pipefit_is_refused(store, folder, tmp_path):
    from pipefit.store.local import blocks

    full_run(store)
    marker = folder / "pipefit-store.json"
    told = blocks.decode(marker.read_bytes())
    marker.write_bytes(blocks.encode({**told, "version": told["version"] + 1}))
    moved = shutil.move(folder, tmp_path / "moved")

    with pytest.raises(StoreError, match="has the layout 2, this Pipefit knows those up to 1"):
        open_store(moved.as_uri()).runs()


def test_a_store_that_is_gone_is_away_and_not_empty(store, folder, tmp_path):
    writer = started(store)
    writer.commit(10, state(1.0), PERMANENT)
    folder.rename(tmp_path / "unplugged")
    for use in (
        store.collections,
        lambda: store.statuses(COLLECTION, ["a"]),
        lambda: store.committed(COLLECTION, [("a", 10)]),
        lambda: writer.commit(20, state(2.0), PERMANENT),
        writer.renew,
        lambda: acquire(store, "b"),
    ):
        with pytest.raises(StoreUnavailable, match="mounted"):
            use()
    (tmp_path / "unplugged").rename(folder)

    writer.commit(20, state(2.0), PERMANENT)
    assert reader(store).status().step == 20


def test_a_disk_that_is_not_mounted_is_away_and_not_empty(store, folder, tmp_path, monkeypatch):
    mounted = {tmp_path, Path("/")}
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Path, "is_mount", lambda path: path in mounted)
    full_run(store)
    folder.rename(tmp_path / "unmounted")
    mounted.remove(tmp_path)
    places._seen.clear()  # as in another process

    for use in (
        store.collections,
        lambda: store.statuses(COLLECTION, ["a"]),
        lambda: acquire(store),
    ):
        with pytest.raises(StoreUnavailable, match=f"mounted at {tmp_path}, where none is now"):
            use()
    assert not folder.exists()
    mounted.add(tmp_path)
    (tmp_path / "unmounted").rename(folder)
    check_full_run(store)
    shutil.rmtree(folder)
    places._seen.clear()
    acquire(store)  # somebody removed the store, which is on a disk that is there


def test_a_store_that_was_moved_is_read_and_continued(store, folder, tmp_path):
    full_run(store)
    moved = tmp_path / "elsewhere" / "my results"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder)
    again = open_store(moved.as_uri())
    check_full_run(again)

    started(again, start=10).commit(20, state(20.0), PERMANENT)
    assert reader(again).status().step == 20


def test_a_run_that_was_copied_into_another_store_is_read_there(store, folder, tmp_path):
    full_run(store, "sweep/a")
    other = open_store((tmp_path / "other").as_uri())
    started(other, "b").end(RunState.FINISHED, None, None, "")
    shutil.copytree(folder / COLLECTION / "sweep", tmp_path / "other" / COLLECTION / "sweep")

    assert sorted(other.runs()["name"]) == ["b", "sweep/a"]
    assert reader(other, "sweep/a").weights()["step"] == 10
    (tmp_path / "other" / COLLECTION / "sweep").rename(tmp_path / "other" / COLLECTION / "renamed")
    with pytest.raises(StoreError, match="holds the run 'sweep/a', not 'renamed/a': move it back"):
        reader(other, "renamed/a")


def unprivileged(action):
    """The exit status of a forked child that does this as somebody who is not root."""
    pid = os.fork()
    if pid == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            action()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_who_may_only_read_reads_everything_and_writes_nothing():
    import tempfile

    folder = Path(tempfile.mkdtemp())  # which others may enter, other than tmp_path
    try:
        store = open_store((folder / "results").as_uri())
        full_run(store)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)

        def look():
            check_full_run(store)
            for write in (
                lambda: acquire(store),
                lambda: acquire(store, "b"),
                lambda: store.rewind(COLLECTION, "a", 10),
                lambda: store.put_artifact(COLLECTION, "a", "report", 10, b"mine"),
                lambda: store.write_summary(COLLECTION, "a", 10, {}),
                lambda: store.outputs_writer(COLLECTION, "a", "test").close(),
            ):
                with pytest.raises(StoreAccessDenied, match="refuses access"):
                    write()

        assert unprivileged(look) == 0
        check_full_run(store)
    finally:
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_run_may_be_called_like_the_folder_of_another(store, folder):
    names = ["a", "a/b", "a/b/c", "run", "document", "a/records", ".a", "a.", "A", "a/..."]
    for number, name in enumerate(names):
        started(store, name).commit(number, state(number), PERMANENT)

    assert sorted(store.runs()["name"]) == sorted(names)
    for number, name in enumerate(names):
        assert reader(store, name).weights()["step"] == number
    inside = [path for path in folder.rglob("*") if path.is_file()]
    assert all("@run" in path.parts or path.parent == folder for path in inside)


@pytest.mark.parametrize(
    "name", ["@run", "a/@run", "a/@run/document", "../a", "a/../b", "/etc", "~"]
)
def test_names_that_are_none_of_runs_find_nothing(store, name):
    started(store).commit(10, state(1.0), PERMANENT)
    assert store.statuses(COLLECTION, [name, "a"]).keys() == {"a"}
    assert store.committed(COLLECTION, [(name, 10)]) == {}
    assert store.lease(COLLECTION, name) is None
    with pytest.raises(NotFound, match="there is no run"):
        reader(store, name)
    with pytest.raises(StoreError, match="cannot name a run"):
        acquire(store, name)


NASTY = ["../../escaped", "a/b", "..", ".", "", "x" * 5000, "zwölf\n", "CON", "a\0b", "-"]


def test_names_of_sets_and_artifacts_never_leave_the_folder(store, folder, tmp_path):
    writer = started(store)
    info = writer.commit(10, state(1.0), PERMANENT)
    everything = [*NASTY, *(name.upper() for name in NASTY)]
    for number, name in enumerate(dict.fromkeys(everything)):
        store.put_artifact(COLLECTION, "a", name, 10, str(number).encode())
        outputs = store.outputs_writer(COLLECTION, "a", name)
        outputs.add({"x": np.full((1, 1), number)})
        given = validation(10, name=name, examples=1, values={name or "v": np.ones(1000)})
        store.commit_validation(COLLECTION, "a", info, given, outputs.close())
    writer.describe({}, {f"described {name}": name.encode("utf-8", "replace") for name in NASTY})

    for number, name in enumerate(dict.fromkeys(everything)):
        assert reader(store).artifact(name) == str(number).encode()
        assert reader(store).outputs(name)["x"] == number
        assert ("a", name, 10) in store.validated(COLLECTION, [("a", name, 10)])
    for name in NASTY:
        assert reader(store).artifact(f"described {name}") == name.encode("utf-8", "replace")
    assert names_in(tmp_path) == ["results"]
    assert names_in(folder) == ["digits", "pipefit-store.json"]
    assert names_in(folder / COLLECTION) == ["a"]


def test_two_runs_that_the_file_system_cannot_tell_apart_are_refused(store, folder):
    """As on a Mac, where `A` opens the folder `a`."""
    started(store, "sweep/a")
    (folder / COLLECTION / "Sweep").symlink_to(folder / COLLECTION / "sweep")

    for use in (lambda: acquire(store, "Sweep/a"), lambda: store.statuses(COLLECTION, ["Sweep/a"])):
        with pytest.raises(StoreError, match="'Sweep/a' cannot be told from 'sweep/a'"):
            use()


def flipped(data, at=-1):
    return data[:at] + bytes([data[at] ^ 1]) + (data[at + 1 :] if at != -1 else b"")


DAMAGES = {
    "one bit": flipped,
    "one bit of the beginning": lambda data: flipped(data, 2),
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "empty": lambda data: b"",
    "zeros": lambda data: b"\0" * len(data),
    "gone": None,
}


def damage(path, how):
    if DAMAGES[how] is None:
        path.unlink()
    else:
        path.write_bytes(DAMAGES[how](path.read_bytes()))


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoints_are_found(store, how):
    writer = started(store)
    info = writer.commit(7, state(1.0), PERMANENT)
    damage(place_of(store).checkpoints / info.id, how)

    told = r"checkpoint of step 7 of run 'a'.*use an earlier"
    with pytest.raises(CheckpointCorrupt, match=told):
        writer.read_checkpoint(info)
    with pytest.raises(CheckpointCorrupt, match=told):
        reader(store).weights()
    if how not in ("one bit", "one bit of the beginning"):
        with pytest.raises(CheckpointCorrupt, match=told):
            reader(store).weights(include="kernel")


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_values_outputs_and_artifacts_are_found(store, how):
    full_run(store)
    place = place_of(store)
    for path in [*place.artifacts.iterdir(), *place.logs.glob("metrics-*")]:
        if how != "one byte more" or path.suffix != ".log":
            damage(path, how)

    with pytest.raises(CheckpointCorrupt, match="shard 0 of the outputs of set 'test'"):
        reader(store).outputs("test")["x"]
    with pytest.raises(CheckpointCorrupt, match="artifact 'report' of run 'a'"):
        reader(store).artifact("report")
    with pytest.raises(CheckpointCorrupt, match=r"artifact 'model\.txt' of run 'a'"):
        reader(store).artifact("model.txt")
    if how == "one byte more":
        assert len(list(reader(store).values("image"))) == 10
        return
    with pytest.raises(StoreError, match=r"damaged|is gone"):
        list(reader(store).values("image"))


@pytest.mark.parametrize("how", [how for how in DAMAGES if how != "gone"])
def test_damaged_documents_and_records_are_named(store, how):
    full_run(store)
    place = place_of(store)
    (story,) = place.stories.iterdir()
    newest = max(place.document.iterdir(), key=lambda path: int(path.stem))
    (index,) = place.checkpoints.glob("*.json")
    (record,) = place.records("validated").iterdir()
    for path, read in (
        (record, lambda: reader(store).validations()),
        (index, lambda: reader(store).weights()),
        (story, lambda: reader(store).document()),
        (newest, lambda: reader(store).status()),
    ):
        whole = path.read_bytes()
        damage(path, how)
        if how == "one byte more" and path == record:
            continue  # behind what counts
        with pytest.raises(StoreError, match=f"{path.name} is damaged .*restore it from a backup"):
            read()
        path.write_bytes(whole)
    check_full_run(store)


@pytest.mark.parametrize("key", ["../../a", "/etc/passwd", "", ".", "..", "a/b", ".hidden", "a\n"])
def test_ids_of_files_are_checked(store, key):
    writer = started(store)
    info = writer.commit(10, state(10.0), PERMANENT)
    with pytest.raises(StoreError, match="is not the id of a file"):
        writer.read_checkpoint(replace(info, id=key))
    store._backend(COLLECTION).checkpoints_of("a").remove([key])
    assert reader(store).weights()["step"] == 10


@pytest.mark.parametrize("what", ["tail", "story", "checkpoints", "past", "logs"])
def test_a_document_cannot_name_a_file_elsewhere(store, tmp_path, what):
    """Whoever is sent a store reads nothing else of their disk, and loses nothing."""
    full_run(store)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    files = store._backend(COLLECTION).files_of("a")
    newest = files.newest()
    path = f"../../../../../{secret.name}"
    assert (files.place.stories / path).resolve() == secret
    named = [{"kind": "metrics", "file": path, "size": 6}] if what == "logs" else path
    there = "attempt" if what == "tail" else "inside"
    files.versions.publish(
        newest,
        {
            there: {**newest.document[there], what: named},
            **{key: value for key, value in newest.document.items() if key != there},
        },
    )

    with pytest.raises(StoreError, match="names no file in"):
        look_everywhere(store)
    with suppress(StoreError):
        started(store).commit(20, state(2.0), PERMANENT)
    assert secret.read_text() == "secret"


def look_everywhere(store):
    run = reader(store)
    run.attempts()
    run.document()
    run.checkpoints()
    run.metrics()


def test_what_is_replaced_or_removed_leaves_nothing_behind(store):
    writer = started(store)
    for value in (1.0, 2.0):
        info = writer.commit(10, state(1.0), PERMANENT)
        outputs = store.outputs_writer(COLLECTION, "a", "test")
        outputs.add({"x": np.ones((100, 1))})
        store.commit_validation(COLLECTION, "a", info, validation(10), outputs.close())
        store.put_artifact(COLLECTION, "a", "report", 10, b"report")
        writer.describe({"n": value}, {"text": b"text"})
        writer.note({"event": "again"})
    aborted = store.outputs_writer(COLLECTION, "a", "test")
    aborted.add({"x": np.ones((30, 100_000))})
    aborted.abort()
    writer.commit(20, state(1.0), PERMANENT)
    writer.retain({})

    place = place_of(store)
    assert len(list(place.checkpoints.iterdir())) == 2  # the last one, and the list
    assert len(list(place.stories.iterdir())) == 1
    assert len(list(place.artifacts.iterdir())) == 3  # a shard, the report, the text
    assert len(list(place.records("outputs").iterdir())) == 1
    assert not list(place.path.rglob(".*"))


def test_a_value_that_cannot_be_stored_leaves_nothing_behind(store):
    writer = started(store)
    before = {path: path.stat().st_mtime_ns for path in place_of(store).path.rglob("*")}
    with pytest.raises(StoreError, match="value 'bad' is"):
        writer.write_metrics(replace(block(1, 3), columns={"bad": np.array([{}, {}, {}])}))
    with pytest.raises(StoreError, match="tensor 'bad' of dtype"):
        writer.commit(10, {"bad": np.array(["a"])}, PERMANENT)
    with pytest.raises(StoreError, match="cannot be stored"):
        writer.note({"bad": object()})

    assert before == {path: path.stat().st_mtime_ns for path in place_of(store).path.rglob("*")}
