"""[[load]]: what may be written there, what of it is identity, and what each model gets."""

import pytest

from pipefit.errors import SpecError
from pipefit.spec import FromRun, Spec

SHA = "abcdef0123456789" * 4


def load(source=None, **rules):
    return {"load": [{"from": source or {"name": "other"}, **rules}]}


def test_what_is_written_is_read_and_written_again(read):
    spec = read(load({"name": "other", "step": 1000}, rename={"^b": "c", "^a": "b"}))
    (table,) = spec.load
    assert table.source == FromRun(name="other", step=1000) and table.optimizer is False
    assert list(table.rename) == ["^b", "^a"]
    assert Spec.from_json(spec.to_json()) == spec
    assert spec.table()["load"][0]["from"] == {"name": "other", "step": 1000}


@pytest.mark.parametrize(
    "changes, told",
    [
        (load({"name": "a", "stepp": 1}), "load[0].from.stepp = 1: unknown key, nearest allowed"),
        (load({"name": "a", "path": "b"}), "exactly one of name, path, archive, tfutils"),
        (load({"nam": "a"}), "exactly one of name, path, archive, tfutils"),
        ({"load": [{"frm": {}}]}, "unknown key, nearest allowed is 'from'"),
        (load({"name": "a", "step": "bst"}), 'load[0].from.step = "bst": must be a step, "newest"'),
        (load({"path": "https://x/y.npz"}), "an address needs sha256 beside it"),
        (load({"archive": "digit"}), "unknown archive, nearest allowed is 'digits'"),
        (load(rename={"(": ""}), 'load[0].rename."(" = "(": must be a regular expression'),
        (load(rename={"a": r"\1"}), "invalid group reference 1"),
        (load(include=["("]), "load[0].include[0]"),
        (load({"tfutils": "mongodb://x/y", "exp_id": "a"}), "mongodb://HOST:PORT/DATABASE/COLLECT"),
        (load({"tfutils": "mongodb://x/y/z"}), "load[0].from.exp_id: is required"),
        (load({"name": "digits-mlp"}), "a run cannot be loaded into itself"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(read, changes, told):
    with pytest.raises(SpecError) as error:
        read(changes)
    assert told in str(error.value)


SAME = [
    ({"name": "other"}, {"name": "other", "database": "mongodb://me:secret@host/db"}),
    ({"name": "other"}, {"name": "other", "collection": "digits"}),
    ({"path": "a.npz", "sha256": SHA}, {"path": "b.npz", "sha256": SHA.upper()}),
    (
        {"tfutils": "mongodb://one/db/c", "exp_id": "a"},
        {"tfutils": "mongodb://me:secret@two:1/db/c?authSource=admin", "exp_id": "a"},
    ),
]
OTHER = [
    ({"name": "other"}, {"name": "other", "step": 3}),
    ({"path": "a.npz"}, {"path": "b.npz"}),
    (
        {"tfutils": "mongodb://one/db/c", "exp_id": "a"},
        {"tfutils": "mongodb://one/db/d", "exp_id": "a"},
    ),
]


@pytest.mark.parametrize("one, two", SAME)
def test_addresses_are_no_identity(read, one, two):
    specs = read(load(one)), read(load(two))
    assert specs[0].identity == specs[1].identity != read().identity
    assert "secret" not in f"{specs[1].parts()}{specs[1].to_json()}"


@pytest.mark.parametrize("one, two", OTHER)
def test_what_is_loaded_is_identity(read, one, two):
    assert read(load(one)).identity != read(load(two)).identity


def test_the_rules_are_identity_and_so_is_their_order(read):
    rename = {"a": "b", "b": "c"}
    there = read(load(rename=rename))
    back = read(load(rename=dict(reversed(rename.items()))))
    assert there.identity != back.identity
    assert there.parts()["load"] == [
        {"from": {"name": "other", "collection": "digits", "step": "newest"},
         "rename": [["a", "b"], ["b", "c"]]}
    ]  # fmt: skip
    archive = read(load({"archive": "digits", "member": "m.npz"})).parts()["load"]
    assert archive == [{"from": {"archive": SHA, "member": "m.npz"}}]


def test_a_model_has_its_own_sources_those_of_all_or_none(read):
    model = {"builder": "pipefit.training.models:mlp", "units": [8], "outputs": 10}
    own = [{"from": {"name": "own"}}]
    models = {"a": {**model, "load": own}, "b": model, "c": {**model, "load": []}}
    tables = read(load()).table()
    del tables["model"]
    spec = Spec.of_tables({**tables, "models": models})
    names = {name: [t.source.name for t in run.load] for name, run in spec.runs().items()}
    assert names == {"a": ["own"], "b": ["other"], "c": []}
    with pytest.raises(SpecError, match="cannot be loaded into itself"):
        Spec.of_tables({**tables, **load({"name": "digits-mlp/b"}), "models": models})
