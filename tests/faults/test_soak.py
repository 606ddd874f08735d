"""Three rounds of `make soak`: fixed ones, and one of two models that is new every time."""

import itertools
import random
import subprocess
import sys

import pytest

from tests.faults.bench import ROOT
from tests.faults.plan import plan_of

SEED = 1
FIXED = {"one device": "mongod killed", "two devices": "trainer killed"}


def fixed_round(variant, kind):
    """The first round of this variant in which nothing but this happens, and not for long."""
    for number in itertools.count():
        plan = plan_of(SEED, number)
        kinds = [fault.kind for fault in plan.faults]
        if (plan.variant.name, kinds) == (variant, [kind]) and plan.faults[0].seconds < 2:
            return number


def new_round():
    """Any round of a variant that has no fixed one."""
    while plan_of(SEED, number := random.randrange(10**6)).variant.name in FIXED:
        pass
    return number


@pytest.mark.timeout(600)
def test_whatever_strikes_the_job_it_ends_as_if_it_had_been_left_alone():
    numbers = [fixed_round(*case) for case in FIXED.items()]
    numbers.append(new_round())
    command = [sys.executable, "-m", "tests.faults", "--seed", str(SEED), "--only"]
    done = subprocess.run(
        [*command, *map(str, numbers)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    # A bad round is told with the command that repeats it.
    assert done.returncode == 0, done.stdout + done.stderr
