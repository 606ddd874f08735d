"""Passwords in an experiment are used, and are not in anything that is kept, shown or hashed."""

import json
import tomllib

import pytest

from pipefit.errors import SpecError
from pipefit.spec import Spec, changed, parse_set

SECRET = "xyzzy-plugh-42"
URLS = [
    f"https://me:{SECRET}@example.org/x.tar.gz",
    f"mongodb://me:{SECRET}@db.example.org:27017/lab?authSource=admin",
    f"https://bucket.s3.amazonaws.com/x.tar?X-Amz-Date=1&X-Amz-Signature={SECRET}",
    f"s3://key:{SECRET}@bucket/x.tar.gz",
]


@pytest.mark.parametrize("url", URLS)
def test_an_address_keeps_it_to_itself(read, url):
    given = {"archives.digits.url": url, "model.cache": {"place": [url]}}
    spec = read(given)
    assert spec.archives["digits"].url == url
    assert spec.one_model.arguments["cache"]["place"] == [url]
    for text in (spec.to_json(), spec.to_toml(), json.dumps(spec.parts())):
        assert SECRET not in text and "***" in text

    # Whoever changes the password has the same experiment.
    other = read(
        {key: json.loads(json.dumps(v).replace(SECRET, "new")) for key, v in given.items()}
    )
    assert other.identity == spec.identity
    # A worker gets all of it, and of what was stored it is known where something is missing.
    assert Spec.from_json(spec.to_json(secrets=True)) == spec
    stored = Spec.of_document({"spec": json.loads(spec.to_json())})
    assert stored.identity == spec.identity
    assert stored.left_out() == ["archives.digits.url", "model.cache.place[0]"]
    assert Spec.of_tables(tomllib.loads(spec.to_toml())) == stored
    assert not read().left_out()


def test_what_earlier_versions_have_stored_is_not_shown(read):
    document = json.loads(read({"archives.digits.url": URLS[0]}).to_json(secrets=True))
    document["model"]["password"] = SECRET
    spec = Spec.of_document({"spec": document})
    assert SECRET not in repr(spec) + spec.to_toml()
    assert spec.left_out() == ["archives.digits.url", "model.password"]


@pytest.mark.parametrize(
    "key", ["password", "token", "api_key", "db-password", "AUTH_TOKEN", "secret", "hub_secret_key"]
)
def test_a_key_of_its_own_is_refused_and_not_shown(read, key):
    for place in (f"model.{key}", f"loss.of.{key}", f"optimizer.learning_rate.{key}", key):
        with pytest.raises(SpecError) as caught:
            read({"loss.builder": "a:b", place: SECRET})
        assert SECRET not in str(caught.value) and place in str(caught.value)
    with pytest.raises(SpecError, match=r"(?s)environment variable"):
        read({f"model.{key}": SECRET})


@pytest.mark.parametrize("key", ["mask_token", "oov_token", "tokens", "key", "secrets_kept"])
def test_other_words_are_allowed(read, key):
    assert read({f"model.{key}": "[UNK]"}).one_model.arguments[key] == "[UNK]"
    assert read({"model.token": 3}).one_model.arguments["token"] == 3


@pytest.mark.parametrize("url", URLS)
def test_it_is_not_typed(url):
    with pytest.raises(SpecError, match="everybody on this machine") as caught:
        parse_set(f"train.steps=3 'archives.digits.url=\"{url}\"'")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("url", URLS)
def test_no_complaint_shows_it(read, url):
    long = url.replace("example", "example" * 40)
    for place in ("archives.digits.sha256", "archives.digits.ur", "train.steps", "save.best"):
        for value in (url, long, [url], {"x": url}):
            with pytest.raises(SpecError) as caught:
                changed(read(), {place: value})
            assert SECRET not in str(caught.value)
