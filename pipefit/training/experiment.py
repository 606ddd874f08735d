"""From an experiment file to its trainer and validators. See `Experiment`."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipefit import refs
from pipefit.errors import SpecError
from pipefit.records import Best
from pipefit.spec import Builder, Data, Spec, ValidationSet
from pipefit.spec.sections.sources import with_archives
from pipefit.training.callables import checked
from pipefit.training.feeding.pipeline import CLOSE_SECONDS, Feed
from pipefit.training.loops.own_loops import TrainLoop
from pipefit.training.loops.schedule import Schedule
from pipefit.training.loops.stopping import EarlyStop
from pipefit.training.objective import (
    Objective,
    PerExample,
    accuracy,
    model_inputs,
    named_outputs,
    per_example,
    sparse_softmax_cross_entropy,
)
from pipefit.training.replicas.devices import Replicas
from pipefit.training.replicas.precision import precision
from pipefit.training.targets import Target, Targets
from pipefit.training.trainer import Trainer
from pipefit.training.updating.freezing import freeze
from pipefit.training.updating.optimizers import built_optimizer, built_rate, part_of
from pipefit.training.updating.updates import Part, Updates
from pipefit.training.validator import ValidationLoop, Validator

logger = logging.getLogger("pipefit.run")


class Shared:
    """What several experiments of one process share: sources, and the feeds that read them.

    Args:
        folders: where the archives are, by name.
    """

    def __init__(self, folders: Mapping[str, str]):
        self._folders = {name: Path(folder) for name, folder in folders.items()}
        self._sources: dict[str, Any] = {}
        self._feeds: dict[str, Feed] = {}

    def source(self, data: Data, where: str) -> Any:
        """The source of a data table; tables that are equal share it."""
        key = repr((data.call, data.archive))
        if key not in self._sources:
            extra = {} if data.archive is None else {"archive": self._folders[data.archive]}
            arguments = with_archives(data.call.arguments, self._folders)
            call = refs.Call(data.call.builder, arguments)
            self._sources[key] = refs.build(call, where, **extra)
        return self._sources[key]

    def feed(self, key: str, make: Callable[[], Feed]) -> Feed:
        """The feed of a key; made once."""
        if key not in self._feeds:
            self._feeds[key] = make()
        return self._feeds[key]

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """End all reading and close the sources; waits for none of them longer than said."""
        for feed in self._feeds.values():
            feed.close(seconds)
        closing = threading.Thread(target=self._close_sources, daemon=True)
        closing.start()
        closing.join(seconds)

    def _close_sources(self) -> None:
        for source in self._sources.values():
            try:
                getattr(source, "close", lambda: None)()
            except Exception:
                logger.warning("a data source failed when it was closed", exc_info=True)


class Experiment:
    """Builds what an experiment file describes, for one model, once in this process.

    A subclass, named in the file by ``experiment = "module:Class"``, overrides what it wants to
    build otherwise; the rest is as the file says:

        class Mine(pipefit.training.Experiment):
            def loss(self):
                return lambda labels, logits: ...

    `data`, `model`, `loss`, `learning_rate`, `optimizer`, `targets`, `train_loop` and
    `validation_loop` return what the builders named in the file return. Training and validation
    use the same model, loss and metrics; which of the two it is, is told by `targets`' mode and by
    Keras' argument `training`.

    Making one seeds Python, NumPy and TensorFlow, starts Keras' layer names from the beginning,
    makes the folder of the file importable and, unless `train.deterministic` is false, switches
    TensorFlow to deterministic ops for good. So without Luigi, and without a database:

        spec = pipefit.read_spec("configs/drawing.toml")
        experiment = Experiment(spec, {"digits": folder})
        trainer = experiment.trainer()
        trainer.run(10)["loss"], experiment.validator("test").run().metrics

    Args:
        spec: the experiment, with one model (see `pipefit.spec.Spec.runs`).
        folders: where the archives are, by name.
        replicas: the devices; None: one CPU.
        shared: what experiments of other models have built already.
        rate_scale: a factor on all learning rates.

    Attributes:
        network: the built model.
    """

    def __init__(
        self,
        spec: Spec,
        folders: Mapping[str, str] | None = None,
        replicas: Replicas | None = None,
        *,
        shared: Shared | None = None,
        rate_scale: float = 1.0,
    ):
        self.spec = spec
        self.replicas = replicas or Replicas()
        self._shared = shared or Shared(folders or {})
        self._rate_scale = rate_scale
        self._updates: Updates | None = None
        sys.path[:0] = [path for path in spec.import_paths() if path not in sys.path]
        keras.utils.clear_session()
        keras.utils.set_random_seed(spec.seed % 2**32)  # NumPy takes no more
        if spec.train.deterministic:
            tf.config.experimental.enable_op_determinism()
        self.network = self._build()

    # ---- what a subclass may build otherwise ----

    def data(self) -> Any:
        """The source of the training data: see docs/data.md."""
        return self._shared.source(self.spec.train_data, f"data.{self.spec.train.data}")

    def model(self) -> keras.Model:
        """The model: inputs named like fields, outputs a dict by name."""
        return refs.build(self.spec.one_model.call, "model")

    def loss(self) -> Callable[..., Any]:
        """The loss per example, called by the names of its arguments."""
        if self.spec.loss is None:
            return sparse_softmax_cross_entropy()
        built: Callable[..., Any] = refs.build(self.spec.loss.call, "loss")
        return built

    def learning_rate(self) -> Any:
        """The learning rate of [optimizer]: a number or a schedule; None: the optimizer's own."""
        rate = self.spec.optimizer.learning_rate if self.spec.optimizer else None
        return built_rate(rate, "optimizer.learning_rate")

    def optimizer(self) -> keras.optimizers.Optimizer | dict[str, keras.optimizers.Optimizer]:
        """The optimizer, or those of [optimizers] by name."""
        parts = self.spec.optimizer_parts
        if "" in parts:
            return built_optimizer(parts[""], self.learning_rate(), "optimizer")
        if type(self).learning_rate is not Experiment.learning_rate:
            raise SpecError(
                f"{type(self).__name__}.learning_rate(): is for [optimizer], but the file has the "
                f"tables [optimizers.*] ({', '.join(parts)}); override optimizer() instead"
            )
        built = {}
        for name, table in parts.items():
            where = f"optimizers.{name}"
            rate = built_rate(table.learning_rate, f"{where}.learning_rate")
            built[name] = built_optimizer(table, rate, where)
        return built

    def targets(self, mode: str) -> dict[str, Target]:
        """What else is recorded, in training or of every validation set.

        Args:
            mode: "train" or "validation".
        """
        return _built(self.spec.train.targets, "train.targets") if mode == "train" else {}

    def train_loop(self) -> TrainLoop | None:
        """What replaces the innermost loop of training; see `pipefit.training.loops.own_loops`."""
        table = self.spec.train.loop
        return refs.build(table.call, "train.loop") if table else None

    def validation_loop(self) -> ValidationLoop | None:
        """What replaces the innermost loop of every validation set whose table names none."""
        return None

    # ---- what is built from it ----

    def feed(self) -> Feed:
        """The training data, in their order."""
        spec = self.spec
        table = spec.train_data
        key = repr((type(self).data, spec.seed, spec.train.overfit, table.table()))
        return self._shared.feed(
            key,
            lambda: Feed(
                self.data(),
                seed=spec.seed,
                batch_size=table.batch_size,
                readers=table.readers,
                prefetch=table.prefetch,
                augment=[
                    refs.build(augment.call, f"data.{spec.train.data}.augment[{i}]")
                    for i, augment in enumerate(table.augment)
                ],
                overfit=spec.train.overfit,
                declared=table.fields,
            ),
        )

    def updates(self) -> Updates:
        """How gradients become updates; made once."""
        if self._updates is None:
            with self.replicas.scope():
                self._updates = Updates(
                    self.network,
                    self._parts(),
                    average=self.spec.train.average,
                    loss_scaling=self.spec.train.precision == "float16",
                    rate_scale=self._rate_scale,
                )
        return self._updates

    def trainer(self) -> Trainer:
        """The training from step 0."""
        train = self.spec.train
        return Trainer(
            objective=Objective(
                self.network,
                per_example(self.loss(), "loss"),
                self._metrics(train.metrics, "train.metrics"),
            ),
            updates=self.updates(),
            feed=self.feed(),
            replicas=self.replicas,
            accumulate=train.accumulate,
            jit_compile=train.jit_compile,
            record=frozenset(train.record),
            targets=Targets(self.targets("train"), "train"),
            loop=_loop(self.train_loop(), "train.loop", ("step", "iterator", "steps")),
            deterministic=train.deterministic,
        )

    def validator(self, name: str) -> Validator:
        """The validation set of this name, reading the model's variables as they are.

        For a set whose table says `averaged`, those of a training are exchanged for their averages
        meanwhile; without a training (`trainer` was not called) they are taken as they are.
        """
        table = self.spec.validation[name]
        where = f"validation.{name}"
        data = self.spec.data_of(name)
        averages = self._updates.average_values() if table.averaged and self._updates else None
        targets = {**self.targets("validation"), **_built(table.targets, f"{where}.targets")}
        own = refs.build(table.loop.call, f"{where}.loop") if table.loop else None
        loop = self.validation_loop() if own is None else own
        if loop is None:  # else it decides what the outputs are
            self._check_outputs(table, where)
        default = {"accuracy": per_example(accuracy(), where)} if self._default_loss() else {}
        return Validator(
            objective=Objective(
                self.network,
                per_example(self.loss(), "loss"),
                self._metrics(table.metrics, f"{where}.metrics", default),
            ),
            source=self._shared.source(data, f"{where}.data"),
            replicas=self.replicas,
            batch_size=data.batch_size,
            outputs=tuple(table.outputs),
            targets=Targets(targets, "validation"),
            loop=_loop(loop, f"{where}.loop", ("step", "iterator")),
            averages=averages,
            where=f"{where}.loop",
            deterministic=self.spec.train.deterministic,
            readers=data.readers,
            prefetch=data.prefetch,
            declared=data.fields,
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

    def early_stop(self) -> EarlyStop | None:
        """What may end the run before its last step."""
        table = self.spec.train.early_stop
        return EarlyStop(**table.table()) if table else None

    def worst(self) -> Best | None:
        """What every first validation beats; None if no best is kept."""
        best = self.spec.save.best
        if best is None:
            return None
        value = -np.inf if best.mode == "max" else np.inf
        return Best(best.metric, best.mode, float(value), -1)

    def _build(self) -> keras.Model:
        with precision(self.spec.train.precision), self.replicas.scope():
            model = self.model()
            if not isinstance(model, keras.Model):
                raise SpecError(
                    f"model.builder = {self.spec.one_model.builder!r}: must return a keras.Model, "
                    f"not {type(model).__name__}"
                )
            example = self.feed().example()
            # Also checks that the inputs are named like fields, before anything is compiled.
            inputs = model_inputs(model, example)
            self._outputs = tuple(named_outputs(model(inputs, training=False)))  # builds it, too
            if self.spec.one_model.trainable is not None:
                freeze(model, self.spec.one_model.trainable)
        return model

    def _parts(self) -> list[Part]:
        built = self.optimizer()
        optimizers = built if isinstance(built, dict) else {"": built}
        tables = self.spec.optimizer_parts
        if set(optimizers) != set(tables):
            raise SpecError(
                f"optimizer(): gave optimizers named {sorted(optimizers)}, "
                f"the file has tables for {sorted(tables)}"
            )
        return [part_of(name, optimizers[name], table) for name, table in tables.items()]

    def _check_outputs(self, table: ValidationSet, where: str) -> None:
        for output in table.outputs:
            if output not in self._outputs:
                names = ", ".join(self._outputs)
                raise SpecError(
                    f"{where}.outputs: the model has no output {output!r}; it has {names}"
                )

    def _default_loss(self) -> bool:
        return self.spec.loss is None and type(self).loss is Experiment.loss

    def _metrics(
        self,
        tables: Mapping[str, Builder] | None,
        where: str,
        default: Mapping[str, PerExample] | None = None,
    ) -> dict[str, PerExample]:
        if tables is None:
            return dict(default or {})
        return {
            name: per_example(value, f"{where}.{name}")
            for name, value in _built(tables, where).items()
        }


def _built(tables: Mapping[str, Builder], where: str) -> dict[str, Any]:
    return {name: refs.build(table.call, f"{where}.{name}") for name, table in tables.items()}


def _loop(loop: Any, where: str, arguments: tuple[str, ...]) -> Any:
    return None if loop is None else checked(loop, where, arguments)


def experiment_class(spec: Spec) -> type[Experiment]:
    """The class that the file names, or `Experiment`.

    Raises:
        SpecError: if it is no subclass.
    """
    if spec.experiment is None:
        return Experiment
    found = refs.load(refs.parse(spec.experiment))
    if not (isinstance(found, type) and issubclass(found, Experiment)):
        raise SpecError(
            f"experiment = {spec.experiment!r}: must be a subclass of "
            f"pipefit.training.Experiment, not {found!r}"
        )
    return found
