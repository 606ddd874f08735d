"""The store in a folder, when a process is killed, stopped or refused at any call it makes."""

import collections
import errno
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path

import pytest
from actors import COLLECTION, ELSEWHERE, PERMANENT, reader, started, state
from calls import Calls
from chaos import Chaos
from deeds import BEGIN, OTHERS, OWNERS, checkpoints, seen, write_all

from pipefit.errors import LeaseLost, StoreError, StoreFull, StoreUnavailable
from pipefit.records import RunState
from pipefit.store import open_store
from pipefit.store.local.tidying import Leftovers

_LOST = 7
_SHORT = 0.05


@pytest.fixture
def store():
    """An empty store, in memory where that can be: thousands of times a file is made durable."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="pipefit-tests-", dir=memory if memory.is_dir() else None)
    yield open_store((Path(folder) / "results").as_uri())
    shutil.rmtree(folder)


def child(action):
    """The pid of a forked child that does this; it exits with `_LOST` if it is refused."""
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        except LeaseLost:
            os._exit(_LOST)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def unnamed(store, name):
    """Files that only owners write and that the run's document does not name."""
    files = store._backend(COLLECTION).files_of(name)
    with Leftovers(files) as leftovers:
        return leftovers.unnamed(files.newest())


@pytest.mark.parametrize("what", OWNERS | OTHERS)
def test_a_process_killed_anywhere_leaves_the_old_or_the_new_whole(store, what):
    prepare, act, read = (OWNERS | OTHERS)[what]

    def killed(name, call):
        ready = prepare(store, name)
        with Calls(call):
            act(ready)

    found = []
    for call in range(1, 200):
        name = f"killed/at-{call}"
        died = ended(child(partial(killed, name, call)))
        found.append(seen(store, name, read))
        if died == 0:
            break
        assert died == -signal.SIGKILL

        start = reader(store, name).status().step
        successor = started(store, name, start=start)
        assert unnamed(store, name) == []
        successor.commit(start + 30, state(4.0), PERMANENT)
        successor.end(RunState.FINISHED, None, start + 30, "")
        assert seen(store, name, checkpoints)[0][-1] == (start + 30, 4.0)

    changes = [i for i in range(1, len(found)) if found[i] != found[i - 1]]
    assert len(changes) == 1, "there is one call before which nothing, and after which all is seen"
    assert len(found) >= 5
    if what in ("commit", "metrics"):
        assert changes[0] < len(found) - 2, "and what is left to do then may be left"


def test_a_process_killed_while_it_makes_a_store_and_a_run_leaves_none_or_both_whole(tmp_path):
    def killed(path, call):
        with Calls(call):
            started(open_store(path.as_uri()))

    found = []
    for call in range(1, 100):
        path = tmp_path / str(call)
        died = ended(child(partial(killed, path, call)))
        found.append(open_store(path.as_uri()).collections())
        if died == 0:
            break
        assert died == -signal.SIGKILL
        started(open_store(path.as_uri())).commit(10, state(1.0), PERMANENT)
        assert reader(open_store(path.as_uri())).weights()["step"] == 1

    assert found == sorted(found)
    assert found.count([]) > 20
    assert found[-1] == [COLLECTION]


@pytest.mark.parametrize(
    ("what", "error"),
    [
        *((what, errno.ENOSPC) for what in OWNERS | OTHERS),
        *((what, errno.EIO) for what in ("commit", "metrics")),
    ],
)
def test_a_write_that_the_system_refuses_anywhere_may_be_repeated(store, what, error):
    prepare, act, read = (OWNERS | OTHERS)[what]
    expected = StoreUnavailable if error == errno.EIO else StoreFull
    for call in range(1, 200):
        name = f"refused/at-{call}"
        ready = prepare(store, name)
        old = seen(store, name, read)
        refused = None
        with Calls(call, error) as calls:
            try:
                act(ready)
            except StoreError as told:
                refused = told
        between = seen(store, name, read)
        if refused is not None:
            assert type(refused) is expected
            assert str(store.root.path) in str(refused)
            if what != "acquire" or between == old:
                act(ready)
        new = seen(store, name, read)
        assert between in (old, new) or what == "note"
        if not calls.failed:
            break

    assert new != old


@pytest.mark.parametrize("what", [*sorted(OWNERS), "begin"])
def test_an_owner_that_was_stopped_anywhere_while_it_was_succeeded_spoils_nothing(store, what):
    prepare, act, _ = (OWNERS | {"begin": BEGIN})[what]

    def stopped(name, call):
        ready = prepare(store, name, owner=ELSEWHERE, ttl=_SHORT)
        with Calls(call, "stop"):
            act(ready)

    for call in range(1, 200):
        name = f"stopped/at-{call}"
        pid = child(partial(stopped, name, call))
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            break
        try:
            time.sleep(_SHORT + 0.02)  # the clock of files ticks every 4 to 10 ms
            run = reader(store, name)
            start = run.status().step
            successor = started(store, name, start=start)
            write_all(successor, 7.0, first=start + 1)
            successor.note({"event": "mine"})
            successor.commit(start + 30, state(7.0), PERMANENT)
            before = everything(run)
        finally:
            os.kill(pid, signal.SIGCONT)
            code = ended(pid)
        assert code in (0, _LOST), "not refused is only who had done it already"
        assert everything(run) == before
        successor.commit(start + 40, state(8.0), PERMANENT)
        assert everything(run) != before


def everything(run):
    """All that a reader sees of a run."""
    return repr(
        (
            run.document(),
            run.status(),
            run.attempts(),
            run.metrics().to_dict(),
            run.validations().to_dict(),
            [(step, a.tobytes()) for step, a in run.values("image")],
            [(step, a.tobytes()) for step, a in run.values("test/roc")],
            run.checkpoints().to_dict(),
            [run.weights(step)["step"].item() for step in run.checkpoints()["step"]],
            run.artifact("a"),
            run.artifact("b"),
        )
    )


@pytest.mark.parametrize("what", OWNERS | OTHERS)
def test_what_is_published_is_durable_before_and_the_name_after(store, what):
    prepare, act, _ = (OWNERS | OTHERS)[what]
    ready = prepare(store, "a")
    with Calls() as calls:
        act(ready)

    files, folders = set(), set()  # which are not durable
    published = 0
    for name, *paths in calls.seen:
        if name in ("write", "pwrite"):
            files.add(paths[0])
        elif name == "fsync":
            files.discard(paths[0])
            folders.discard(paths[0])
        elif name in ("link", "replace"):
            target = paths[1]
            assert not files, f"{target} is published before {files} are durable"
            assert not folders, f"{target} is published before the names in {folders} are durable"
            folders.add(target.parent)
            published += 1
        elif name == "mkdir":
            folders.add(paths[0].parent)
    assert not files | folders
    assert published >= 1


@pytest.mark.parametrize("what", OWNERS | OTHERS)
def test_no_call_that_changes_a_file_is_overlooked_here(store, what):
    prepare, act, _ = (OWNERS | OTHERS)[what]

    def counted():
        audited = collections.Counter()
        events = {"os.link": "link", "os.rename": "replace", "os.remove": "unlink"}

        def hook(event, arguments):
            if event == "open" and arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                audited["open"] += 1
            elif event in events or event in ("os.mkdir", "os.truncate", "os.rmdir", "os.utime"):
                audited[events.get(event, event.removeprefix("os."))] += 1

        ready = prepare(store, "a")
        sys.addaudithook(hook)
        with Calls() as calls:
            act(ready)
        seen = collections.Counter(name for name, *_ in calls.seen)
        assert audited == {name: seen[name] for name in audited}
        assert audited["open"] >= 1

    assert ended(child(counted)) == 0


def test_processes_killed_and_stopped_at_random_lose_nothing(store):
    chaos = Chaos(store.root.path.parent)
    chaos.run(seconds=8)

    assert chaos.kills > 5
    assert chaos.stops > 5
    chaos.check()
