"""Words for messages and provenance, and the examples in the documentation of `pipefit.refs`."""

import doctest
import functools
import importlib
import pkgutil
from dataclasses import dataclass, field

import numpy as np
import pytest

import pipefit.refs
from pipefit.refs import dotted, nearest, qualified_name, show, unknown


def test_the_nearest_word_ignores_case_and_may_be_none():
    assert nearest("STEPZ", ["steps", "data"]) == "steps"
    assert nearest("learning_rat", ["Learning_Rate"]) == "Learning_Rate"
    assert nearest("xyz", ["steps"]) is None
    assert nearest("xyz", []) is None


def test_unknown_words_come_with_all_that_is_allowed():
    assert unknown("unknown key", "x", []) == "unknown key (allowed: none)"
    assert unknown("unknown key", "datas", ["data", "a"]).endswith("'data' (allowed: data, a)")


def test_places_are_toml_keys():
    assert dotted("", "a b", "c") == '"a b".c'
    assert dotted("data.train", 'quo"te', "x.y") == 'data.train."quo\\"te"."x.y"'


def test_values_are_shown_as_toml_and_shortened():
    assert show({"a b": [1, True, "x"], "c": {}}) == '{ "a b" = [1, true, "x"], c = {} }'
    assert show("x" * 200, width=10) == '"xxxxxx...'


class Squared:
    """A callable without a name."""

    def __call__(self, x):
        return x * x

    def method(self):
        """Has a name of its own."""


class Configured(Squared):
    """A callable that tells its configuration as Keras' objects do."""

    def get_config(self):
        return {"factor": 2, "inner": [Squared()]}


class Unconfigured(Squared):
    """What Keras answers for models whose arguments it does not know."""

    def get_config(self):
        raise NotImplementedError


@dataclass
class Scaled:
    """A callable dataclass."""

    factor: float
    names: list = field(default_factory=list)


HERE = __name__


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (nearest, "pipefit.refs.names:nearest"),
        (Squared, f"{HERE}:Squared"),
        (Squared().method, f"{HERE}:Squared.method"),
        (len, "builtins:len"),
        ("".join, "builtins:str.join"),
        (np.add, "numpy:add"),
        (Squared(), f"{HERE}:Squared()"),
        (Configured(), f"{HERE}:Configured(factor=2, inner=[{HERE}:Squared()])"),
        (Unconfigured(), f"{HERE}:Unconfigured()"),
        (Scaled(0.5, ["a"]), f"{HERE}:Scaled(factor=0.5, names=['a'])"),
        (
            functools.partial(nearest, Squared(), allowed={"k": (1, None)}),
            f"functools.partial(pipefit.refs.names:nearest, {HERE}:Squared(), "
            "allowed={'k': [1, None]})",
        ),
    ],
)
def test_everything_callable_has_a_name_without_addresses(thing, name):
    assert qualified_name(thing) == name


def test_a_lambda_has_a_name_too():
    assert qualified_name(lambda: 0) == f"{HERE}:test_a_lambda_has_a_name_too.<locals>.<lambda>"


def test_the_examples_in_the_documentation_are_true():
    names = [info.name for info in pkgutil.iter_modules(pipefit.refs.__path__)]
    results = [
        doctest.testmod(importlib.import_module(name))
        for name in ["pipefit.refs", *(f"pipefit.refs.{name}" for name in names)]
    ]
    assert sum(result.attempted for result in results) > 5
    assert not any(result.failed for result in results)
