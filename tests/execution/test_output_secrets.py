"""What the user's code writes goes where it always went, but without the passwords in it."""

import io
from pathlib import Path

import pytest

from pipefit import errors
from pipefit.errors import keep_secret, without_passwords
from pipefit.execution.channel import WithoutPasswords


@pytest.fixture
def secret(monkeypatch):
    """The password of a database that this process uses."""
    monkeypatch.setattr(errors, "_SECRETS", set())
    keep_secret("mongodb://me:xyzzy%2Fplugh@host/lab")
    return "xyzzy/plugh"


def test_the_password_of_the_database_is_shown_in_none_of_its_forms(secret):
    assert without_passwords(f"a {secret} b xyzzy%2Fplugh c") == "a *** b *** c"
    keep_secret("mongodb://me:short@host/lab")
    keep_secret("mongodb://host/lab")
    assert without_passwords("short words and host stay") == "short words and host stay"


def test_lines_are_handed_on_without_passwords_however_they_come(secret):
    file = io.StringIO()
    out = WithoutPasswords(file)
    print("no secret, ünïcode", file=out)
    for piece in ("the pass", "word is xyzzy", "/plu", "gh, at https://me:other@host/x", "\nre"):
        out.write(piece)
    assert file.getvalue().splitlines() == [
        "no secret, ünïcode", "the password is ***, at https://me:***@host/x",
    ]  # fmt: skip
    out.flush()
    assert file.getvalue().endswith("\nre")


def test_other_code_finds_the_file_that_it_expects():
    with Path(__file__).open(encoding="utf-8") as file:
        out = WithoutPasswords(file)
        assert (out.fileno(), out.encoding, out.writable()) == (file.fileno(), "utf-8", True)
