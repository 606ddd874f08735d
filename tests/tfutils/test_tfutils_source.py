"""A checkpoint of tfutils as a source of weights."""

import hashlib
import io
import tarfile
from urllib.parse import quote_plus

import numpy as np
import pytest
from tfutils_dump import judged

from pipefit.errors import LoadError, StoreAccessDenied, StoreError
from pipefit.execution.tfutils import open_tfutils

LAYERS = ("hidden1", "hidden2", "softmax_linear")
WEIGHTS = sorted(f"{layer}/{kind}" for layer in LAYERS for kind in ("weights", "bias"))


def replace_file(old, step, data, **fields):
    """Put other bytes into the place of a checkpoint."""
    record = old.files.find_one({"exp_id": "training0", "step": step, "saved_filters": True})
    old.chunks.delete_many({"files_id": record["_id"]})
    for n, begin in enumerate(range(0, len(data), record["chunkSize"])):
        piece = data[begin : begin + record["chunkSize"]]
        old.chunks.insert_one({"files_id": record["_id"], "n": n, "data": piece})
    told = {"length": len(data), "md5": hashlib.md5(data).hexdigest(), **fields}
    old.files.update_one({"_id": record["_id"]}, {"$set": told})


def test_the_old_model_says_what_it_said(old, last_digits):
    with open_tfutils(old.uri, "training0", step=1000) as source:
        known = source.tensors()
        assert sorted(n for n, info in known.items() if info.role == "model") == WEIGHTS
        slots = sorted(n for n, info in known.items() if info.role == "optimizer")
        assert slots == sorted(f"{name}/Momentum" for name in WEIGHTS)
        assert (known["hidden1/weights"].dtype, known["hidden1/weights"].shape) == (
            "float32",
            (64, 128),
        )
        assert judged(source.read(WEIGHTS), last_digits) == (329, 0.48752)
        assert source.step == 1000 and len(source.digest) == 64
    with open_tfutils(old.uri, "training0", step=200) as source:
        assert judged(source.read(WEIGHTS), last_digits) == (332, 0.40064)


def test_the_newest_is_the_newest_of_both_databases(old):
    with open_tfutils(old.uri, "training1") as source:
        assert source.step == 1500 == source.read(["global_step"])["global_step"]
    with open_tfutils(old.uri, "training0") as source:
        assert source.step == 1000


def test_what_is_not_there_is_told_with_what_is(old):
    server = old.uri.partition(f"/{old.name}")[0]
    end = "?authSource=admin"
    for uri, exp_id, step, words in (
        (f"{server}/nowhere/digits{end}", "training0", None, ["nowhere/digits", old.name]),
        (f"{server}/{old.name}/digit{end}", "training0", None, ["'digit'", "are: digits"]),
        (f"{server}/{old.name}{end}", "training0", None, ["are: digits"]),
        (old.uri, "training", None, ["'training'", "training0, training1"]),
        (old.uri, "training0", 150, ["step 150", "0, 100, 200, 300", "1000"]),
    ):
        with pytest.raises(LoadError) as caught:
            open_tfutils(uri, exp_id, step)
        assert "\n" not in str(caught.value)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        password = server.rpartition("@")[0].rpartition(":")[2]
        assert password not in str(caught.value)
    with pytest.raises(StoreError, match="write mongodb://USER:PASSWORD@HOST:PORT/DATABASE/COLL"):
        open_tfutils("mongodb://me:a/b@host/db/coll", "training0")


def test_a_user_who_may_only_read_is_enough(old):
    admin, user, secret = old.client.admin, f"reader-{old.name}", "p@ss/word"
    places = [old.name, *(old.recent(f"training{n}").name for n in range(2))]
    roles = [{"role": "read", "db": place} for place in places]
    admin.command("createUser", user, pwd=secret, roles=roles)
    try:
        server = old.uri.rpartition("@")[2].partition("/")[0]
        name = f"{user}:{quote_plus(secret)}"
        uri = f"mongodb://{name}@{server}/{old.name}/digits?authSource=admin"
        with open_tfutils(uri, "training0") as source:
            assert (source.step, source.read(["hidden1/bias"])["hidden1/bias"].shape) == (
                1000,
                (128,),
            )
            assert source.label.endswith(f" of mongodb://{server}/{old.name}/digits")
        with pytest.raises(LoadError, match="are: digits"):
            open_tfutils(uri.replace("/digits", "/digit"), "training0")
        admin.command("revokeRolesFromUser", user, roles=roles[1:])
        with pytest.raises(StoreAccessDenied, match=r"training0___RECENT'.* role read") as caught:
            open_tfutils(uri, "training0")
        assert user not in str(caught.value) and quote_plus(secret) not in str(caught.value)
    finally:
        admin.command("dropUser", user)


def tar_of(members):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def member(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_hostile_and_damaged_checkpoints_are_refused_in_a_line(changed):
    record = changed.files.find_one({"exp_id": "training0", "step": 200})
    whole = changed.chunks.find_one({"files_id": record["_id"]})["data"]
    both = [(member("c.index"), b"i"), (member("c.data-00000-of-00001"), b"d")]
    for data, words in (
        (whole[:60_000], "tar archive is damaged"),
        (whole[:-20_480] + bytes(20_480), "cannot be read"),
        (b"\x80\x04" + whole, "no tar archive"),
        (tar_of([(member("../c.index"), b"i"), both[1]]), "'../c.index'"),
        (tar_of([*both, (member("c.index2", tarfile.SYMTYPE, "/etc"), b"")]), "a symbolic link"),
        (tar_of([*both, (member("/etc/passwd"), b"x")]), "'/etc/passwd'"),
        (tar_of(both[:1]), "0 data files that belong together instead of 1"),
        (tar_of([*both, (member("d.index"), b"i")]), "2 files *.index"),
        (tar_of(both), "cannot be read as a TensorFlow checkpoint"),
    ):
        replace_file(changed, 200, data)
        with pytest.raises(LoadError) as caught:
            open_tfutils(changed.uri, "training0", 200).read(["hidden1/weights"])
        assert words in str(caught.value) and "\n" not in str(caught.value), str(caught.value)
        assert "step 200 of experiment 'training0'" in str(caught.value)


def test_other_bytes_than_were_stored_are_found(changed):
    record = changed.files.find_one({"exp_id": "training0", "step": 200})
    chunk = changed.chunks.find_one({"files_id": record["_id"]})
    flipped = chunk["data"][:5000] + bytes([chunk["data"][5000] ^ 1]) + chunk["data"][5001:]
    for piece, words in (
        ({"data": flipped}, "its md5 is"),
        ({"data": chunk["data"][:-1]}, f"{record['length'] - 1} bytes instead of"),
        ({"data": chunk["data"] + b"x"}, "more than its"),
        ({"n": 1}, "its piece 0 is missing"),
    ):
        changed.chunks.replace_one({"_id": chunk["_id"]}, {**chunk, **piece})
        with pytest.raises(LoadError, match=words):
            open_tfutils(changed.uri, "training0", 200)


def test_a_checkpoint_of_saver_version_1_is_one_file(changed, tmp_path):
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("a/weights", initializer=np.arange(6.0).reshape(2, 3))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(write_version=1)
        saver.save(session, str(tmp_path / "model"), write_meta_graph=False)
    data = (tmp_path / "model").read_bytes()
    replace_file(changed, 200, data, _saver_write_version=1)
    changed.files.update_many({}, {"$unset": {"_saver_num_data_files": 1}})

    with open_tfutils(changed.uri, "training0", 200) as source:
        assert source.read(["a/weights"])["a/weights"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.fixture
def large(changed, tmp_path):
    """Step 200 with 24 MB, of which 240 kB are in "small/weights"; and what is in it."""
    import tensorflow as tf

    values = {
        "big/weights": np.arange(2_000_000, dtype=np.float32),
        "big/weights/Adam": np.ones(2_000_000, np.float32),
        "big/weights/Adam_1": np.ones(2_000_000, np.float32),
        "small/weights": -np.arange(60_000, dtype=np.float32).reshape(300, 200),
        "global_step": np.int64(200),
    }
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "checkpoint-200"),
        tensor_names=list(values),
        shape_and_slices=[""] * len(values),
        tensors=[tf.constant(value) for value in values.values()],
    )
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path in sorted(tmp_path.glob("checkpoint-200.*")):
            tar.add(path, arcname=path.name)
    replace_file(changed, 200, data.getvalue())
    return changed, values


def sent(old):
    """Bytes that the server has sent so far."""
    return old.client.admin.command("serverStatus")["network"]["bytesOut"]


def test_of_a_large_checkpoint_only_the_wanted_variables_travel(large):
    old, values = large
    before = sent(old)
    with open_tfutils(old.uri, "training0", 200) as source:
        assert source.tensors().keys() == values.keys()
        found = source.read(["small/weights"])["small/weights"]
        assert found.tobytes() == values["small/weights"].tobytes()
        assert source.step == 200 and source.digest is None
        moved = sent(old) - before
        assert moved < 3e6, moved
        # Most of it: then all of it, verified.
        again = source.read(list(values))
        assert all(again[name].tobytes() == value.tobytes() for name, value in values.items())
        assert len(source.digest) == 64
        assert sent(old) - before > 24e6


def test_what_travels_in_part_is_verified_in_part(large):
    old, values = large
    record = old.files.find_one({"exp_id": "training0", "step": 200})
    chunks = list(old.chunks.find({"files_id": record["_id"]}).sort("n"))
    for damaged in ("big/weights", "small/weights"):
        marker = values[damaged].tobytes()[4000:4100]
        (chunk,) = [chunk for chunk in chunks if marker in chunk["data"]]
        bad = chunk["data"].replace(marker, bytes(100))
        old.chunks.update_one({"_id": chunk["_id"]}, {"$set": {"data": bad}})
        with open_tfutils(old.uri, "training0", 200) as source:
            if damaged == "small/weights":
                with pytest.raises(LoadError, match="step 200 of experiment 'training0'"):
                    source.read(["small/weights"])
            else:
                assert source.read(["small/weights"])["small/weights"].sum() < 0
    old.chunks.delete_one({"_id": chunks[-1]["_id"]})
    with pytest.raises(LoadError, match=f"its piece {chunks[-1]['n']} is missing"):
        open_tfutils(old.uri, "training0", 200)
