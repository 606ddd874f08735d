import os
from dataclasses import replace

import psutil
import pytest
from actors import dead_process, living_process

from pipefit.store import this_process
from pipefit.store.owner import is_dead


def test_a_process_is_the_same_each_time_it_is_asked():
    assert this_process() == this_process()
    assert this_process().pid == os.getpid()
    assert str(this_process()).startswith(f"pid {os.getpid()} on ")
    assert not is_dead(this_process())


def test_a_child_is_alive_until_it_is_killed():
    with living_process() as (child, owner):
        assert not is_dead(owner)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(owner)  # although its parent has not waited for it
    assert is_dead(owner)


def test_a_pid_that_was_given_to_another_process_is_not_the_owner():
    me = this_process()
    assert is_dead(replace(me, started=me.started - 2.0))


def test_a_process_of_another_boot_or_namespace_is_never_known_to_be_dead():
    assert not is_dead(replace(dead_process(), scope="another boot"))


def test_a_step_of_the_clock_kills_nobody(monkeypatch):
    if not psutil.LINUX:
        pytest.fail("start times are compared in another way here: test that")
    with living_process() as (_, owner):
        booted = psutil.boot_time()
        monkeypatch.setattr(psutil._psplatform, "boot_time", lambda: booted + 3600.0)
        assert abs(psutil.Process(owner.pid).create_time() - booted - owner.started) > 3000
        assert not is_dead(owner)


def test_a_process_that_may_not_be_looked_at_is_alive(monkeypatch):
    with living_process() as (_, owner):

        def hidden(pid):
            raise psutil.NoSuchProcess(pid)

        monkeypatch.setattr(psutil, "Process", hidden)
        monkeypatch.setattr("pipefit.store.owner._scope", lambda: owner.scope)
        assert not is_dead(owner)
