"""What can go wrong, as plain functions on a `Bench`: who is struck, how, and how it ends."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from dataclasses import dataclass

from pipefit.errors import StoreUnavailable
from tests.faults.bench import Bench
from tests.faults.variants import LEASE

Act = Callable[[Bench, float], None]

#: Shorter and longer than a lease, and than a run waits for its database.
SHORT, LONG = (0.2, 0.5 * LEASE), (1.2 * LEASE, 2 * LEASE)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        strike: does it.
        recover: ends it, some time later; None: it needs no end. Both are given `amount`.
        lasts: seconds until then, one of these ranges.
        amount: how much, whatever that means for the kind, from this range.
        needs: who must be there: "trainer", "luigi" (it must have printed something: before that
            Python is only starting, and signals are not ours), or nobody in particular.
    """

    strike: Act
    recover: Act | None = None
    lasts: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    amount: tuple[float, float] = (0.0, 0.0)
    needs: str = ""


def _kill_trainer(bench: Bench, _: float) -> None:
    bench.signal_trainer(signal.SIGKILL)


def _stop_trainer(bench: Bench, _: float) -> None:
    bench.signal_trainer(signal.SIGSTOP)


def _go_on(bench: Bench, _: float) -> None:
    bench.continue_all()


def _stop_luigi(bench: Bench, _: float) -> None:
    bench.signal_luigi(signal.SIGSTOP)


def _kill_luigi(bench: Bench, _: float) -> None:
    bench.signal_luigi(signal.SIGKILL)


def _kill_both(bench: Bench, _: float) -> None:
    bench.signal_luigi(signal.SIGKILL)
    bench.signal_trainer(signal.SIGKILL)


def _usurp(bench: Bench, _: float) -> None:
    bench.signal_trainer(signal.SIGSTOP)
    bench.signal_luigi(signal.SIGKILL)


def _terminate(bench: Bench, _: float) -> None:
    bench.signal_luigi(signal.SIGTERM)


def _interrupt(bench: Bench, _: float) -> None:
    bench.signal_luigi(signal.SIGINT)


def _kill_mongod(bench: Bench, _: float) -> None:
    bench.signal_mongod(signal.SIGKILL)


def _shut_mongod_down(bench: Bench, _: float) -> None:
    bench.stop_mongod()


def _start_mongod(bench: Bench, _: float) -> None:
    bench.start_mongod()


def _stop_mongod(bench: Bench, _: float) -> None:
    bench.signal_mongod(signal.SIGSTOP)


def _continue_mongod(bench: Bench, _: float) -> None:
    bench.signal_mongod(signal.SIGCONT)


def _cut_request(bench: Bench, size: float) -> None:
    bench.proxy.cut_after = round(size)


def _cut_answer(bench: Bench, size: float) -> None:
    bench.proxy.cut_answers_after = round(size)


def _cut_all(bench: Bench, _: float) -> None:
    bench.proxy.cut_all()


def _unplug(bench: Bench, _: float) -> None:
    bench.proxy.down()


def _plug_in(bench: Bench, _: float) -> None:
    bench.proxy.up()


def _slow_down(bench: Bench, seconds: float) -> None:
    bench.proxy.delay = seconds


def _hurry(bench: Bench, _: float) -> None:
    bench.proxy.delay = 0.0


def _collect_garbage(bench: Bench, _: float) -> None:
    with contextlib.suppress(StoreUnavailable):  # by an earlier fault
        bench.store.garbage(remove=True)


KINDS = {
    "trainer killed": Kind(_kill_trainer, needs="trainer"),
    "trainer stopped": Kind(_stop_trainer, _go_on, (SHORT, LONG), needs="trainer"),
    # The command is typed again meanwhile; the trainer comes back when its run has another owner.
    "trainer stopped, luigi killed": Kind(
        _usurp, _go_on, ((2 * LEASE, 4 * LEASE),), needs="trainer"
    ),
    "luigi killed": Kind(_kill_luigi),
    "luigi stopped": Kind(_stop_luigi, _go_on, (SHORT, LONG)),
    "luigi and trainer killed": Kind(_kill_both, needs="trainer"),
    "luigi terminated": Kind(_terminate, needs="luigi"),
    "luigi interrupted": Kind(_interrupt, needs="luigi"),
    "mongod killed": Kind(_kill_mongod, _start_mongod, (SHORT, LONG)),
    "mongod restarted": Kind(_shut_mongod_down, _start_mongod, (SHORT,)),
    "mongod stopped": Kind(_stop_mongod, _continue_mongod, (SHORT, LONG)),
    "request cut": Kind(_cut_request, amount=(1, 80_000)),
    "answer cut": Kind(_cut_answer, amount=(1, 4_000)),
    "connections cut": Kind(_cut_all),
    "network away": Kind(_unplug, _plug_in, (SHORT, LONG)),
    "network slow": Kind(_slow_down, _hurry, (LONG,), amount=(0.02, 0.2)),
    "garbage collected": Kind(_collect_garbage),
}
