"""Loading a part of a checkpoint moves that part through the connection, and little more."""

import bson
import numpy as np
from actors import PERMANENT, reader, started
from recorder import RECORDER

from pipefit.execution.loading import RunSource, StateSource

KERNEL = 262_144  # numbers of 4 bytes: 1 MiB


def test_a_hundredth_of_a_checkpoint_moves_a_hundredth_of_its_bytes(store):
    tensors = {f"model/layer{i}/kernel": np.full(KERNEL, i, np.float32) for i in range(100)}
    tensors |= {"run/step": np.int64(10), "optimizer/adam/iteration": np.int64(10)}
    started(store).commit(10, tensors, PERMANENT)

    with RECORDER.recording() as seen:
        source = StateSource(RunSource(reader(store), 10))
        facts = source.tensors()
        told = sum(len(bson.encode(reply)) for _, reply in seen)
        found = source.read(["layer7/kernel"])
    moved = sum(len(bson.encode(reply)) for _, reply in seen) - told

    assert len(facts) == 102 and source.step == 10
    assert facts["layer7/kernel"].shape == (KERNEL,) and facts["run/step"].role == "other"
    np.testing.assert_array_equal(found["layer7/kernel"], tensors["model/layer7/kernel"])
    assert told < 40_000
    # 1 MiB lies in at most 6 chunks of 255 KiB; the index of the file comes again.
    assert found["layer7/kernel"].nbytes <= moved < 6 * 255 * 1024 + 40_000
