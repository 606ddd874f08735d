"""Digests of content: sampled ones, those of files, and what they cost the second time."""

import hashlib
import os

import numpy as np
import pytest

from pipefit.data import content_digest
from pipefit.data.digests import file_digest, files_digest
from pipefit.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PIPEFIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "cache" / "digests"


class Numbers:
    """A source without a digest, which counts what is read."""

    def __init__(self, length, change=None, texts=False):
        self.length, self.change, self.texts = length, change, texts
        self.read = []

    def __len__(self):
        return self.length

    def take(self, indices):
        self.read += indices.tolist()
        values = np.where(indices == self.change, -1, indices)
        return {"x": np.array([f"{v}" for v in values]) if self.texts else values}


class TestSampled:
    def test_looks_at_64_examples_from_the_first_to_the_last(self):
        source = Numbers(1_000_000)
        assert content_digest(source).startswith("sampled:")
        assert len(set(source.read)) == 64
        assert {0, 999_999} <= set(source.read)

    @pytest.mark.parametrize("length", [1, 5, 64, 65])
    def test_looks_at_all_of_a_few(self, length):
        source = Numbers(length)
        content_digest(source)
        assert len(set(source.read)) == min(length, 64)

    @pytest.mark.parametrize("texts", [False, True])
    def test_sees_another_example_length_or_dtype(self, texts):
        digests = [
            content_digest(Numbers(64, texts=texts)),
            content_digest(Numbers(65, texts=texts)),
            content_digest(Numbers(64, change=63, texts=texts)),
            content_digest(Numbers(64, texts=not texts)),
        ]
        assert len(set(digests)) == 4
        assert content_digest(Numbers(64, texts=texts)) == digests[0]

    def test_of_what_cannot_be_indexed_there_is_none(self):
        assert content_digest(iter([])) == "none:"

        class Dataset(Numbers):
            """Like tf.data.Dataset: it has a length and a take, for something else."""

            element_spec = None

        assert content_digest(Dataset(3)) == "none:"


class Own(Numbers):
    def __init__(self, text):
        super().__init__(3)
        self.text = text

    def digest(self):
        return self.text


def test_a_source_may_have_its_own():
    assert content_digest(Own("release 7")) == "release 7"


@pytest.mark.parametrize("text", [None, "", 7, b"x"])
def test_which_must_be_a_text(text):
    with pytest.raises(DataError, match=r"Own: digest\(\) must return a text"):
        content_digest(Own(text))


class TestFiles:
    def test_of_one_file_is_its_sha256(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"content")
        assert file_digest(path) == f"sha256:{hashlib.sha256(b'content').hexdigest()}"

    def test_of_several_depends_on_names_and_contents(self, tmp_path):
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_bytes(b"1")
        two.write_bytes(b"2")
        digests = [
            files_digest({"a": one, "b": two}),
            files_digest({"a": two, "b": one}),
            files_digest({"a": one, "c": two}),
            files_digest({"a": one, "b": two, "c": two}),
        ]
        assert len(set(digests)) == 4
        assert files_digest({"b": two, "a": one}) == digests[0]

    def test_is_read_again_only_when_the_file_changed(self, tmp_path, cache):
        path = tmp_path / "file"
        path.write_bytes(b"content")
        digest = file_digest(path)
        [entry] = cache.iterdir()
        entry.write_text("kept")
        assert file_digest(path) == "sha256:kept"
        facts = path.stat()
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
        assert file_digest(path) == digest
        path.write_bytes(b"CONTENT")
        assert file_digest(path) != digest

    def test_no_file(self, tmp_path):
        with pytest.raises(DataError, match="absent: cannot be read: No such file"):
            file_digest(tmp_path / "absent")
