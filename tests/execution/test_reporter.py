"""What a worker tells of the runs that it trains."""

import logging

from pipefit.execution.reporter import Reporter, RunLog

LOGGER = logging.getLogger("pipefit.run")


def test_what_is_logged_is_told_with_the_step_where_the_run_is():
    told = []
    with Reporter(told.append) as reporter:
        log = RunLog(LOGGER, "")
        log.info("building")
        reporter.step = 7
        log.step = 3
        log.warning("%d percent", 5)
        logging.getLogger("of.somebody").error("else")
    assert [event.values for event in told] == [
        {"level": logging.INFO, "message": "building", "step": None},
        {"level": logging.WARNING, "message": "5 percent", "step": 7},
        {"level": logging.ERROR, "message": "else", "step": 7},
    ]
    assert reporter.tail().splitlines() == [
        "INFO: building", "WARNING step 7: 5 percent", "ERROR step 7: else",
    ]  # fmt: skip


def test_of_several_runs_each_has_its_name_and_step():
    told = []
    with Reporter(told.append) as reporter:
        first, second = RunLog(LOGGER, "two/a"), RunLog(LOGGER, "two/b")
        first.step = 4
        first.info("test: loss 1")
        second.info("building")
        LOGGER.info("reading")
    assert [(event.values.get("run"), event.values["step"]) for event in told] == [
        ("two/a", 4), ("two/b", None), (None, None),
    ]  # fmt: skip
    assert reporter.tail().splitlines() == [
        "INFO two/a step 4: test: loss 1", "INFO two/b: building", "INFO: reading",
    ]  # fmt: skip
