"""One experiment file with several models is as many runs: what each of them is on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipefit.spec.sections import Model, NamedModel

if TYPE_CHECKING:
    from pipefit.spec.experiment import Spec

#: Keys of [models.NAME] that [model] does not have.
_OWN = NamedModel.model_fields.keys() - Model.model_fields.keys()


def run_name(name: str, model: str) -> str:
    """The run of a model of an experiment."""
    return f"{name}/{model}" if model else name


def single_tables(spec: Spec) -> dict[str, dict[str, Any]]:
    """By the name of a model the tables of the experiment that trains it alone."""
    return {name: _single(spec, name, model) for name, model in spec.models.items()}


def _single(spec: Spec, name: str, model: NamedModel) -> dict[str, Any]:
    shared, own = spec.table(), model.table()
    del shared["models"]
    shared["name"] = run_name(spec.name, name)
    shared["train"]["data"] = own.pop("data", spec.train.data)
    if "loss" in own:
        shared["loss"] = own["loss"]
    if model.optimizer or model.optimizers:
        for key in ("optimizer", "optimizers"):
            shared.pop(key, None)
            if key in own:
                shared[key] = own[key]
    if "load" in own:
        shared["load"] = own["load"]
    shared["model"] = {key: value for key, value in own.items() if key not in _OWN}
    return shared
