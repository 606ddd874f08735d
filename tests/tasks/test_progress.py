"""What is shown of a worker that trains one run or several."""

import logging
from types import SimpleNamespace

import pytest

from pipefit.execution import Event
from tasks.progress import Display

RUNS = {"two/a": "jobs/two/a", "two/b": "jobs/two/b"}


class Page:
    """Stands for a Luigi task that runs, whose page shows what it is told."""

    def __init__(self):
        self.shown = []

    def set_progress_percentage(self, percentage):
        self.shown.append(percentage)

    def set_status_message(self, text):
        self.shown[-1] = (self.shown[-1], text)


@pytest.fixture
def lines(monkeypatch):
    """The lines of the log."""
    found = []
    log = SimpleNamespace(
        info=lambda text, *args: found.append((logging.INFO, text % args)),
        log=lambda level, text, *args: found.append((level, text % args)),
    )
    monkeypatch.setattr("tasks.progress.logger", log)
    monkeypatch.setattr("tasks.progress._PAGE_SECONDS", 0.0)
    monkeypatch.setattr("tasks.progress._LINE_SECONDS", 0.0)
    return found


def progress(run, step, **more):
    values = {"step": step, "steps": 100, "loss": 0.5, "rate": 0, "seconds_left": None}
    return Event("progress", {**values, "run": run, **more})


def test_the_slowest_of_several_runs_is_shown_in_one_percentage(lines):
    page = Page()
    with Display(page, "jobs/two", 100, RUNS) as display:
        display(progress("two/a", 40))
        display(progress("two/b", 10))
        display(progress("two/a", 100))
        display(progress("two/b", 20))
    assert [percentage for percentage, _ in page.shown] == [40, 10, 10, 20]
    assert page.shown[-1][1] == ("jobs/two step 20/100 (20 %), loss 0.5 (slowest of 2: two/b)")
    assert lines[-1] == (logging.INFO, page.shown[-1][1])


def test_nobody_waits_for_a_run_that_has_ended_early(lines):
    page = Page()
    with Display(page, "jobs/two", 100, RUNS) as display:
        display(progress("two/a", 50))
        display(progress("two/b", 10, over=True))
        display(progress("two/a", 60))
        display(progress("two/a", 100))
        display(progress("two/a", 100, over=True))
    assert [percentage for percentage, _ in page.shown] == [50, 50, 60, 100, 100]
    assert page.shown[0][1] == "jobs/two step 50/100 (50 %), loss 0.5"


def test_lines_name_the_run_they_are_about(lines):
    said = {"level": logging.WARNING, "message": "hello", "step": 3}
    with Display(Page(), "jobs/two", 100, RUNS) as display:
        display(Event("log", {**said, "run": "two/b"}))
        display(Event("log", said))
        display(Event("log", {**said, "step": None}))
    with Display(Page(), "jobs/two/b test at step 5", 0, {}) as display:
        display(Event("log", {**said, "run": "two/b"}))
    assert [text for _, text in lines] == [
        "jobs/two/b step 3: hello",
        "jobs/two step 3: hello",
        "jobs/two: hello",
        "jobs/two/b test at step 5 step 3: hello",
    ]
    assert {level for level, _ in lines} == {logging.WARNING}


def test_a_text_is_printed_as_it_is(lines, capsys):
    with Display(Page(), "jobs/two", 0, {}) as display:
        display(Event("text", {"text": "layer  shape\nout    [10]"}))
    assert capsys.readouterr().out == "layer  shape\nout    [10]\n"
    assert lines == []
