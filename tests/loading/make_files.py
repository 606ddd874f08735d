"""Makes tests/loading/files/weights.tar.xz: what Keras 3, Keras 2 and TensorFlow 1 and 2 save.

    python tests/loading/make_files.py 3 FOLDER      # an environment with tensorflow and keras
    python tests/loading/make_files.py 2 FOLDER      # one with tf_keras, the last of Keras 2
    tar -C FOLDER --sort=name --owner=0 --group=0 -cJf tests/loading/files/weights.tar.xz .

Beside every file or folder NAME stands NAME.npz: the variables by the names they have in the
program that saved them.
"""

import os
import shutil
import sys
from pathlib import Path

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"


def keep(folder, name, variables):
    np.savez_compressed(folder / f"{name}.npz", **variables)


def by_path(model):
    return {v.path: np.asarray(v) for v in model.variables if "seed_generator" not in v.path}


def trained(model, keras, inputs):
    outputs = model(inputs)
    model.fit(inputs, np.zeros(outputs.shape), epochs=2, verbose=0)
    return {f"optimizer/{v.path}": np.asarray(v) for v in model.optimizer.variables}


def keras3(folder):
    import keras

    keras.utils.set_random_seed(3)
    of = keras.layers
    layers = [keras.Input((6, 6, 1)), of.Conv2D(2, 3, name="conv"), of.BatchNormalization()]
    layers += [of.Flatten(), of.Dropout(0.1), of.Dense(3, name="hidden"), of.Dense(2)]
    plain = keras.Sequential(layers, name="net")
    plain.compile("adam", "mse")
    state = trained(plain, keras, np.ones((4, 6, 6, 1)))
    plain.save(folder / "sequential.keras")
    keep(folder, "sequential.keras", by_path(plain) | state)
    plain.save_weights(folder / "sequential.weights.h5")
    keep(folder, "sequential.weights.h5", by_path(plain) | state)
    plain.export(folder / "export", verbose=False)
    keep(folder, "export", by_path(plain))
    keras.saving.save_model(plain, folder / "unpacked", zipped=False)
    keep(folder, "unpacked", by_path(plain) | state)

    zoo(keras, folder)
    subclassed(keras, folder)
    keras.config.set_dtype_policy("bfloat16")
    small = keras.Sequential([keras.Input((3,)), of.Dense(2, name="half")])
    keras.config.set_dtype_policy("float32")
    small.save_weights(folder / "bfloat16.weights.h5")
    values = {"half/kernel": small.layers[0].kernel, "half/bias": small.layers[0].bias}
    keep(folder, "bfloat16.weights.h5", {k: np.asarray(v, "float32") for k, v in values.items()})
    return plain


def zoo(keras, folder):
    """Layers of most kinds, also in each other, under a name that two of them have."""
    of = keras.layers
    image, text = keras.Input((8, 8, 4)), keras.Input((5,))
    x = of.Normalization(name="norm")(image)
    x = of.SeparableConv2D(4, 3, name="separable")(x)
    x = of.DepthwiseConv2D(3, use_bias=False)(x)
    x = of.Conv2DTranspose(4, 2)(x)
    x = of.PReLU()(of.GroupNormalization(2)(x))
    x = of.LayerNormalization(center=False)(of.RMSNormalization()(of.Flatten()(x)))
    e = of.Embedding(7, 4)(text)
    e = of.Conv1D(4, 2, padding="same")(e)
    e = of.MultiHeadAttention(2, 2, name="mha")(e, e)
    e = of.EinsumDense("abc,cd->abd", output_shape=(None, 4), bias_axes="d")(e)
    e = of.SimpleRNN(3, return_sequences=True)(of.GRU(3, return_sequences=True)(e))
    e = of.Bidirectional(of.LSTM(3))(e)
    inner = keras.Sequential(
        [keras.Input((6,)), of.Dense(4, name="deep"), of.BatchNormalization(scale=False)],
        name="inner",
    )
    given = keras.Input((4,))
    plain = keras.Model(given, of.Dense(4, name="through")(given), name="functional")
    e = plain(inner(e))
    out = of.Dense(2, use_bias=False, name="out")(of.Concatenate()([x, e]))
    model = keras.Model([image, text], out, name="zoo")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.save(folder / "zoo.keras")
    keep(folder, "zoo.keras", by_path(model))


def subclassed(keras, folder):
    of = keras.layers

    @keras.saving.register_keras_serializable("tests")
    class Net(keras.Model):
        def __init__(self, **others):
            super().__init__(**others)
            self.first = of.Dense(3, name="dense_a")
            self.blocks = [of.Dense(3), of.LayerNormalization()]
            self.own = self.add_weight(shape=(3,), name="scale")

        def call(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return x * self.own

    model = Net(name="mine")
    model(np.ones((1, 3)))
    model.save(folder / "subclassed.keras")
    keep(folder, "subclassed.keras", by_path(model))


def tensorflow(folder, model):
    import tensorflow as tf

    step = tf.Variable(70, dtype=tf.int64, name="global_step")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, step=step)
    checkpoint.save(folder / "tf2" / "ckpt")
    checkpoint.save(folder / "tf2" / "ckpt")
    state = {f"optimizer/{v.path}": np.asarray(v) for v in model.optimizer.variables}
    keep(folder, "tf2", by_path(model) | state)
    for name, optimizer in (("adam", "AdamOptimizer"), ("momentum", "MomentumOptimizer")):
        saver(tf, folder / f"tf1_{name}", optimizer)


def saver(tf, folder, optimizer):
    v1 = tf.compat.v1
    folder.mkdir()
    arguments = (0.1, 0.9) if optimizer == "MomentumOptimizer" else (0.1,)
    with tf.Graph().as_default(), v1.Session() as session:
        weights = v1.get_variable("hidden1/weights", (4, 3))
        bias = v1.get_variable("hidden1/bias", (3,))
        step = v1.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.tanh(tf.ones((1, 4)) @ weights + bias))
        update = getattr(v1.train, optimizer)(*arguments).minimize(loss, step)
        average = tf.train.ExponentialMovingAverage(0.9).apply([weights])
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(update)
        session.run(average)
        versions = v1.train.SaverDef.V1, v1.train.SaverDef.V2
        for version in versions:
            path = folder / f"version{version}" / "model.ckpt"
            path.parent.mkdir()
            saver = v1.train.Saver(write_version=version)
            saver.save(session, str(path), step, write_meta_graph=False)
        values = {v.op.name: session.run(v) for v in v1.global_variables()}
    keep(folder.parent, folder.name, values)


def keras2(folder):
    import tensorflow as tf
    import tf_keras as keras

    keras.utils.set_random_seed(2)
    of = keras.layers
    inner = keras.Sequential([keras.Input((4,)), of.Dense(3, name="deep")], name="inner")
    layers = [keras.Input((8,)), of.Dense(4, name="hidden1"), of.BatchNormalization(), inner]
    model = keras.Sequential([*layers, of.Dense(2, name="out")])
    optimizers = {"new": keras.optimizers.Adam(), "legacy": keras.optimizers.legacy.Adam()}
    for name, optimizer in optimizers.items():
        model.compile(optimizer, "mse")
        model.fit(np.ones((4, 8)), np.ones((4, 2)), epochs=2, verbose=0)
        model.save(folder / f"keras2_{name}.h5")
        kept = {v.name.removesuffix(":0"): v.numpy() for v in model.variables}
        held = optimizer.variables() if name == "legacy" else optimizer.variables
        state = {v.name.removesuffix(":0"): v.numpy() for v in held}
        keep(folder, f"keras2_{name}.h5", kept | state)
        objects = tf.train.Checkpoint(model=model, optimizer=optimizer)
        objects.save(folder / f"keras2_{name}" / "ckpt")
        keep(folder, f"keras2_{name}", kept | state)
    for name in ("keras2_weights.h5", "keras2.keras"):
        model.save_weights(folder / name) if name.endswith("h5") else model.save(folder / name)
        keep(folder, name, kept)
    model.save(folder / "keras2_saved_model", save_format="tf")
    keep(folder, "keras2_saved_model", kept | state)


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(exist_ok=True)
    if sys.argv[1] == "3":
        tensorflow(target, keras3(target))
    else:
        keras2(target)
    for name in ("keras_metadata.pb", "fingerprint.pb"):
        for path in target.rglob(name):
            path.unlink()
    for path in target.rglob("assets"):
        shutil.rmtree(path)
