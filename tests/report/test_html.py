import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np

from pipefit.records import Ended, RunState
from pipefit.report import render

EVIL = "<script>alert('x')</script>"


class Checked(HTMLParser):
    """Collects text, and fails on tags that do not nest."""

    VOID = ("meta", "br", "link")

    def __init__(self, page: str):
        super().__init__()
        self.open, self.words, self.attributes = [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_the_page_tells_what_a_run_is_and_did(make_run):
    spec = json.dumps({"name": "mlp", "model": {"units": [128, 32]}})
    program = {
        "python": "3.11",
        "git": {"commit": "c0ffee", "dirty": True},
        "command": ["luigi", "X"],
    }
    progress = {"step": 100, "steps": 100, "rate": 41234.4, "loss": 0.1, "seconds_left": 0.0}
    run = make_run("night/1", spec=spec, program=program, progress=progress)
    text = Checked(render(run)).text
    for expected in (
        "night/1",
        "FINISHED",
        "collection digits",
        "best test/accuracy 0.9500 max, at step 100",
        "test accuracy 0.9500 at step 100",
        "steps 100 of 100",
        "speed 41,234 examples per second",
        "in 1 attempt",
        "git.commit c0ffee",
        "command luigi X",
        "units = [ 128, 32, ]",
        "permanent",
        "from step to step",
    ):
        assert expected in text, expected


def test_the_page_tells_the_model_what_happened_and_how_it_ended_early(make_run):
    layers = [{"name": EVIL, "type": "Dense", "parameters": 2410, "trainable": False}] * 600
    run = make_run(
        steps=50,
        metrics={
            "loss": np.ones(50),
            "frames": np.ones((50, 1000)),
            "pair": np.ones((50, 2)),
            "spoken": np.array(["a"] * 50),
            "step_seconds": np.full(50, 0.1),
        },
        notes=[{"event": "rollback", "from": 130, "to": 100, "scale": 0.5, "reason": EVIL}],
        model={"name": "mlp", "parameters": 2410, "trainable_parameters": 10, "layers": layers},
        artifacts={"model.txt": b"...", "program.diff": b"..."},
        program={"versions": {"keras": "3.15.0", "numpy": "2.4"}, "data_digest": "sha256:abc"},
        ended=Ended("early_stop", "{}", 50, "no better loss for 5 validations"),
    )
    page = render(run)
    text = Checked(page).text
    for expected in (
        "complete at step 50 by early_stop: no better loss for 5 validations",
        "attempt 1 rollback: from 130, to 100, scale 0.5000, reason <script>",
        "parameters 2410 trainable_parameters 10",
        "600 layers layer type parameters trained <script>alert('x')</script> Dense 2410 no",
        "versions keras 3.15.0, numpy 2.4 data_digest sha256:abc",
        "Stored with the run: model.txt, program.diff",
        "Speed milliseconds per step",
    ):
        assert expected in text, expected
    assert "<progress" not in page and "<script" not in page
    assert "spoken" not in text and "frames" not in text


def test_the_page_needs_nothing_else(make_run):
    page = render(make_run())
    links = [
        value for name, value in Checked(page).attributes if name in ("href", "xlink:href", "src")
    ]
    assert all(link.startswith("#") for link in links)
    assert not re.search(r"@import|url\((?!#)|https?://", page)
    ids = re.findall(r' id="([^"]*)"', page)
    assert set(re.findall(r'(?:href="|url\()#(\w+)', page)) <= set(ids)


def test_everything_from_users_is_escaped(make_run):
    run = make_run(
        state=RunState.FAILED,
        reason=f"loss {EVIL}",
        log_tail=f"Traceback {EVIL}",
        metrics={"loss": np.ones(100), EVIL: np.ones(100), f"{EVIL}/loss": np.ones(100)},
        sets=(EVIL, "$\\frac{$"),
        spec=json.dumps({"name": EVIL, EVIL: 1}),
        program={EVIL: EVIL, "nested": {EVIL: [EVIL]}},
    )
    page = render(run)
    assert "<script" not in page
    text = Checked(page).text
    assert text.count("alert('x')") >= 10
    assert "$\\frac{$" in text


def test_a_failed_run_shows_its_reason_and_the_end_of_its_log(make_run):
    run = make_run(state=RunState.FAILED, reason="the loss is NaN", log_tail="Diverged: here")
    text = Checked(render(run)).text
    assert text.count("the loss is NaN") == 2
    assert "The end of the log of attempt 1 Diverged: here" in text


def test_passwords_in_addresses_are_not_repeated(make_run):
    address = "mongodb://reader:hunter2@old.example.org/db"
    page = render(make_run(spec=json.dumps({"load": address}), program={"command": [address]}))
    assert "hunter2" not in page
    assert page.count("mongodb://reader:***@old.example.org/db") == 2


def test_a_run_that_has_nothing_yet_has_a_page(store):
    from pipefit.records import RunOrder
    from pipefit.store.owner import this_process

    order = RunOrder("digits", "new", "same", {}, "{}", steps=100)
    store.acquire(order, this_process(), ttl=600)
    text = Checked(render(store.run("new", "digits"))).text
    assert "new RUNNING" in text and "steps 0 of 100" in text
    assert "Curves" not in text and "Validations" not in text


def test_a_million_steps_stay_below_two_megabytes_and_show_the_spike(make_run):
    steps = 1_000_000
    noise = np.random.default_rng(0).random(steps).astype("float32")
    loss = noise.copy()
    loss[654_321] = 1e6
    run = make_run(steps=steps, metrics={"loss": loss, "accuracy": noise, "learning_rate": noise})
    page = render(run)
    assert len(page.encode()) < 2_000_000
    assert "1,000,000" in page


def test_many_metrics_and_sets_stay_below_two_megabytes(make_run):
    noise = np.random.default_rng(0).random((200, 5000)).astype("float32")
    columns = {f"part{i % 20}/metric{i // 20}": noise[i] for i in range(200)}
    page = render(make_run(steps=5000, metrics=columns, sets=[f"set{i}" for i in range(30)]))
    assert len(page.encode()) < 2_000_000
    assert "more curves are left out" in page


def test_importing_reports_is_light_and_rendering_leaves_pyplot_alone():
    code = """
import sys
import pipefit.report
assert not {"pandas", "matplotlib", "jinja2", "pymongo", "numpy"} & set(sys.modules)
import pandas as pd
from pipefit.report.plots import metric_panels
columns = ["step", "set", "examples", "checkpoint", "seconds"]
assert metric_panels(pd.DataFrame({"loss": [2.0, 1.0]}), pd.DataFrame(columns=columns))
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
