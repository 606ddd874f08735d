from pathlib import Path

import pytest

from pipefit import settings
from pipefit.errors import SettingsError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Run in a folder without luigi.cfg and without any of the variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("PIPEFIT_HOME", "PIPEFIT_MONGO_URI", "LUIGI_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)


def write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def test_home_is_the_variable_else_the_users_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert settings.home().name == "pipefit"
    monkeypatch.setenv("PIPEFIT_HOME", "somewhere")
    assert settings.home() == tmp_path / "somewhere"
    monkeypatch.setenv("PIPEFIT_HOME", " ")
    assert settings.home().name == "pipefit"


def test_the_variable_wins_over_luigi_cfg_which_wins_over_embedded(monkeypatch):
    assert settings.mongo_uri() == "embedded"
    write("luigi.cfg", "[mongo]\nuri = mongodb://u:p%40ss@host/lab\n")
    assert settings.mongo_uri() == "mongodb://u:p%40ss@host/lab"
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "mongodb://other")
    assert settings.mongo_uri() == "mongodb://other"
    monkeypatch.setenv("PIPEFIT_MONGO_URI", "")
    assert settings.mongo_uri() == "mongodb://u:p%40ss@host/lab"


def test_the_file_of_luigi_config_path_wins_over_the_one_in_the_folder(monkeypatch):
    write("luigi.cfg", "[execution]\nexecutor = here\nslots = 3\n")
    write("other.cfg", "[execution]\nexecutor = there\n")
    monkeypatch.setenv("LUIGI_CONFIG_PATH", "other.cfg")
    assert settings.value("execution", "executor", "x") == "there"
    assert settings.value("execution", "slots", "x") == "3"


def test_an_empty_value_counts_as_not_set():
    write("luigi.cfg", "[mongo]\nuri =\n")
    assert settings.mongo_uri() == "embedded"


def test_luigi_reads_the_same_value(monkeypatch):
    from luigi.configuration import LuigiConfigParser

    write("luigi.cfg", "[execution]\nfolder = ${LAB}/scratch\n")
    monkeypatch.setenv("LAB", "/lab")
    luigis = LuigiConfigParser()
    luigis.read(LuigiConfigParser._config_paths)
    assert settings.value("execution", "folder", "") == "/lab/scratch"
    assert settings.value("execution", "folder", "") == luigis.get("execution", "folder")


def test_a_variable_that_is_not_set_and_a_broken_file_are_named():
    write("luigi.cfg", "[mongo]\nuri = ${NOT_SET_ANYWHERE}\n")
    with pytest.raises(SettingsError, match=r"\[mongo\] uri .* NOT_SET_ANYWHERE"):
        settings.mongo_uri()
    write("luigi.cfg", "uri = 1\n")
    with pytest.raises(SettingsError, match=r"^luigi\.cfg is not a valid"):
        settings.mongo_uri()
