"""Archives of sources inside other sources, such as those of a mix."""

import pytest

from pipefit.errors import SpecError
from pipefit.spec.sections.sources import with_archives

MIX = {
    "builder": "pipefit.data:mix",
    "batch_size": 10,
    "weights": [3, 1],
    "sources": [
        {"builder": "pipefit.data:digits", "archive": "digits", "split": "train"},
        {"builder": "pipefit.data:digits", "archive": "digits", "split": "test"},
    ],
}


def test_are_names_of_archives(read):
    data = read({"data.train": MIX}).train_data
    assert list(data.archives("data.train")) == [
        ("data.train.sources[0].archive", "digits"),
        ("data.train.sources[1].archive", "digits"),
    ]
    with pytest.raises(SpecError, match=r'sources\[1\]\.archive = "digit": unknown archive, near'):
        other = {**MIX["sources"][1], "archive": "digit"}
        read({"data.train": {**MIX, "sources": [MIX["sources"][0], other]}})


def test_count_in_the_identity_by_their_content(read):
    same, other = {"url": "elsewhere.tar", "sha256": "0" * 64}, {"url": "x.tar", "sha256": "1" * 64}
    renamed = [{**source, "archive": "other"} for source in MIX["sources"]]
    first = read({"data.train": MIX, "archives.digits": same})
    assert first.parts()["data.sources"][0]["archive"] == "0" * 64
    moved = {"data.train": {**MIX, "sources": renamed}, "archives.other": same}
    assert read(moved).identity == first.identity
    assert read({"data.train": MIX, "archives.digits": other}).identity != first.identity


def test_are_replaced_by_what_is_given_for_them(read):
    arguments = read({"data.train": MIX}).train_data.call.arguments
    found = with_archives(arguments, {"digits": "/unpacked"})
    assert [source["archive"] for source in found["sources"]] == ["/unpacked", "/unpacked"]
    assert [source["split"] for source in found["sources"]] == ["train", "test"]
    assert found["weights"] == [3, 1]
    assert arguments["sources"][0]["archive"] == "digits"
