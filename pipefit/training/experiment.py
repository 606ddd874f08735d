"""From an experiment file to its trainer and validators. See `Experiment`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipefit import refs
from pipefit.data import Source, field_specs
from pipefit.errors import SpecError
from pipefit.records import Best
from pipefit.spec import Builder, Data, Spec
from pipefit.training.devices import Replicas
from pipefit.training.objective import (
    Objective,
    PerExample,
    accuracy,
    model_inputs,
    named_outputs,
    per_example,
    sparse_softmax_cross_entropy,
)
from pipefit.training.optimizers import Clip, prepare
from pipefit.training.schedule import Schedule
from pipefit.training.trainer import Trainer, Validator


class Experiment:
    """Builds what an experiment file describes, once, in this process.

    Making one seeds Python, NumPy and TensorFlow, starts Keras' layer names from the beginning and,
    unless `train.deterministic` is false, switches TensorFlow to deterministic ops for good.

    Args:
        spec: the experiment.
        folders: where the archives are unpacked, by name.
        replicas: the devices.
    """

    def __init__(self, spec: Spec, folders: Mapping[str, str], replicas: Replicas):
        self.spec = spec
        self.replicas = replicas
        self._folders = folders
        self._sources: dict[str, Source] = {}
        keras.utils.clear_session()
        keras.utils.set_random_seed(spec.seed % 2**32)  # NumPy takes no more
        if spec.train.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.model = self._build_model()

    def source(self, data: Data, where: str) -> Source:
        """The source of a data table; tables that are equal share it."""
        key = repr((data.call, data.archive))
        if key not in self._sources:
            extra = {} if data.archive is None else {"archive": Path(self._folders[data.archive])}
            source = refs.build(data.call, where, **extra)
            field_specs(source)
            self._sources[key] = source
        return self._sources[key]

    def trainer(self) -> Trainer:
        """The training from step 0."""
        spec = self.spec
        objective = Objective(self.model, self._loss(), self._metrics(spec.train.metrics, "train"))
        return Trainer(
            objective=objective,
            optimizer=self._optimizer(),
            source=self.source(spec.train_data, f"data.{spec.train.data}"),
            replicas=self.replicas,
            batch_size=spec.train_data.batch_size,
            seed=spec.seed,
            accumulate=spec.train.accumulate,
            clip=Clip(**spec.optimizer.clip.table()) if spec.optimizer.clip else None,
            jit_compile=spec.train.jit_compile,
        )

    def validator(self, name: str) -> Validator:
        """The validation set of this name, reading the model's variables as they are."""
        validation = self.spec.validation[name]
        where = f"validation.{name}"
        data = self.spec.data_of(name)
        default = {"accuracy": per_example(accuracy(), where)} if self.spec.loss is None else {}
        metrics = self._metrics(validation.metrics, where, default)
        for output in validation.outputs:
            if output not in self._outputs:
                names = ", ".join(self._outputs)
                raise SpecError(
                    f"{where}.outputs: the model has no output {output!r}; it has {names}"
                )
        return Validator(
            objective=Objective(self.model, self._loss(), metrics),
            source=self.source(data, f"{where}.data"),
            replicas=self.replicas,
            batch_size=data.batch_size,
            outputs=tuple(validation.outputs),
        )

    def schedule(self) -> Schedule:
        """When something is due."""
        save = self.spec.save
        return Schedule(
            steps=self.spec.train.steps,
            metrics_every=save.metrics_every,
            validate_every=save.validate_every if self.spec.validation else 0,
            checkpoint_every=save.checkpoint_every,
            recent_every=save.recent_every,
        )

    def worst(self) -> Best | None:
        """What every first validation beats; None if no best is kept."""
        best = self.spec.save.best
        if best is None:
            return None
        value = -np.inf if best.mode == "max" else np.inf
        return Best(best.metric, best.mode, float(value), -1)

    def _build_model(self) -> keras.Model:
        with self.replicas.scope():
            model = refs.build(self.spec.model.call, "model")
            if not isinstance(model, keras.Model):
                raise SpecError(
                    f"model.builder = {self.spec.model.call.builder!r}: must return a keras.Model, "
                    f"not {type(model).__name__}"
                )
            source = self.source(self.spec.train_data, f"data.{self.spec.train.data}")
            example = {k: tf.constant(v) for k, v in source.take(np.zeros(1, np.int64)).items()}
            # Also checks that the inputs are named like fields, before anything is compiled.
            inputs = model_inputs(model, example)
            self._outputs = tuple(named_outputs(model(inputs, training=False)))  # builds it, too
        if self.replicas.count > 1:
            _synchronise(model)
        return model

    def _optimizer(self) -> Any:
        table = self.spec.optimizer
        with self.replicas.scope():
            optimizer = refs.build(table.call, "optimizer")
            groups = [(group.match, group.scale) for group in table.groups]
            return prepare(optimizer, self.model.trainable_variables, groups)

    def _loss(self) -> PerExample:
        if self.spec.loss is None:
            return per_example(sparse_softmax_cross_entropy(), "loss")
        return per_example(refs.build(self.spec.loss.call, "loss"), "loss")

    def _metrics(
        self,
        tables: Mapping[str, Builder] | None,
        where: str,
        default: Mapping[str, PerExample] | None = None,
    ) -> dict[str, PerExample]:
        if tables is None:
            return dict(default or {})
        return {
            name: per_example(
                refs.build(metric.call, f"{where}.metrics.{name}"), f"{where}.metrics.{name}"
            )
            for name, metric in tables.items()
        }


def _synchronise(model: keras.Model) -> None:
    # Statistics of the whole batch: the numbers must not depend on the number of devices, and
    # moving statistics that differ between devices could not be saved.
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True
