"""What the last task of a job sees to."""

import numpy as np

from pipefit.execution import spool
from pipefit.execution.spool import End
from pipefit.records import RunOrder, RunState
from pipefit.store import AttemptKey
from tasks.aggregate import Aggregate
from tests.store.actors import dead_process


def test_of_a_complete_run_the_end_is_written_that_the_database_did_not_take(store, environment):
    task = Aggregate(config="configs/digits_mlp.toml", set="train.steps=10 save.recent_every=0")
    (order,) = task.run_orders().values()
    assert isinstance(order, RunOrder)
    owner = dead_process()
    writer = store.acquire(order, owner, ttl=60.0)
    writer.begin(-1)
    writer.commit(10, {"w": np.zeros(3, np.float32)}, frozenset({"final"}))
    key = AttemptKey(order.collection, order.name, order.identity, writer.fence, owner)
    folder = spool.write(store.describe(), key, 60.0, [End(RunState.FINISHED, None, 10, "bye")])

    task.run()

    run = store.run(order.name, order.collection)
    (attempt,) = run.attempts()
    assert (attempt.state, attempt.log_tail) == (RunState.FINISHED, "bye")
    assert run.document()["lease"] is None
    assert not folder.exists()
