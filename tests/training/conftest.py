"""Four logical CPU devices for this process, before TensorFlow starts; deterministic ops."""

import gc

import pytest
import tensorflow as tf

# Now, while the tests are collected: the first operation of any test starts TensorFlow for good.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)


@pytest.fixture(autouse=True, scope="session")
def _started():
    """TensorFlow has started, with deterministic ops, as experiments have them by default."""
    assert len(tf.config.list_logical_devices("CPU")) == 4
    tf.config.experimental.enable_op_determinism()
    gc.freeze()  # nobody looks for garbage in TensorFlow's modules after each of many tests


@pytest.fixture(autouse=True, scope="module")
def _collected():
    """What a module has traced goes at its end."""
    yield
    gc.collect()
