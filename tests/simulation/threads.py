"""Threads of simulated processes: greenlets that run one at a time, each until it waits.

`Threads` stands in for the module `threading`. A thread that may go on is resumed by a callback of the virtual loop, at
once or a moment later, as the seed has it; it may be made to wait where it takes a lock, too. The event loop itself
never waits: for a lock that a thread holds, that thread is run on until it has let go of it.
"""

from __future__ import annotations

import contextvars
import random
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet
from simulation.clockwork import PROCESS, Process, VirtualLoop, current

WAKE_S = 2e-3
"""A thread that was woken runs on after this at the latest."""
SOON = 0.6
"""Chance that it runs on at once."""

Report = Callable[[str], None]


class Thread:
    """As `threading.Thread`; also what parks and wakes a greenlet."""

    def __init__(
        self,
        threads: Threads,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        daemon: bool = True,
    ) -> None:
        self._threads, self._target, self._args, self.name = threads, target, args, name
        self.process = current()
        self.ended = False
        self.wants: Lock | None = None  #: the one that it waits for
        self.preempted = False  #: it waits for nothing
        self._greenlet = greenlet(self._run, threads.main)
        self._greenlet.gr_context = contextvars.copy_context()
        self._ticket = 0  #: of the newest wait
        self._parked = self._woken = False
        self._result = True
        self._signals: deque[int] = deque()
        self._joining: list[Thread] = []

    def start(self) -> None:
        if self.process.dead:
            return
        self.process.threads.append(self)
        self._parked = True
        self.wake()

    def _run(self, *_: Any) -> None:
        try:
            self._target(*self._args)
        except GreenletExit:
            pass
        except BaseException:  # noqa: BLE001 - told, and a fault of the seed
            told = traceback.format_exc(limit=-8)
            self._threads.report(f"thread {self.name} of {self.process.name}: {told}")
        finally:
            self.ended = True
            if self in self.process.threads:
                self.process.threads.remove(self)
            for thread in self._joining:
                thread.wake()

    def park(self, timeout_s: float | None = None) -> bool:
        """Wait until woken; False when the time passed first. Called by the thread itself."""
        assert getcurrent() is self._greenlet
        if self.process.dead:
            raise GreenletExit
        self._ticket += 1
        timer = None
        if timeout_s is not None:
            after = max(timeout_s, 0.0)
            timer = self._threads.loop.call_later(after, self._resume, self._ticket, False)
        self._take_signals()
        self._parked, self._woken = True, False
        self._threads.main.switch()
        if timer is not None:
            timer.cancel()
        if self.process.dead:
            raise GreenletExit
        self._take_signals()
        return self._result

    def _take_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            self.process.handlers[number](number, None)

    def wake(self) -> None:
        """Have it go on soon."""
        if not self._parked or self._woken:
            return
        self._woken = True
        loop = self._threads.loop
        if loop.rng.random() < SOON:
            loop.call_soon(self._resume, self._ticket, True)
        else:
            loop.call_later(loop.rng.random() * WAKE_S, self._resume, self._ticket, True)

    def interrupt(self, number: int) -> None:
        """A signal of its process: its handler runs here before anything else does."""
        self._signals.append(number)
        self.wake()

    def run_on(self) -> None:
        """Called by the event loop, which wants what this thread holds."""
        if self._woken or self.preempted:
            self._resume(self._ticket, True)
            return
        holder = self.wants._owner if self.wants is not None else None
        what = f"the event loop waits for thread {self.name}, which waits for something else"
        assert isinstance(holder, Thread), what
        holder.run_on()

    def _resume(self, ticket: int, result: bool) -> None:
        if ticket != self._ticket or not self._parked or self.ended:
            return
        self._parked, self._woken, self._result = False, False, result
        self._greenlet.switch()

    def kill(self) -> None:
        """Its process is dead: it unwinds, and whatever it does meanwhile has no effect."""
        if getcurrent() is self._greenlet:
            return  # it notices at its next wait
        if not self._greenlet.dead and self._ticket:
            self._parked = False
            self._greenlet.throw(GreenletExit)
        self.ended = True

    def is_alive(self) -> bool:
        return not self.ended

    def join(self, timeout: float | None = None) -> None:
        if not self.ended:
            me = self._threads.me()
            assert me is not None
            self._joining.append(me)
            me.park(timeout)


class Lock:
    """As `threading.Lock`, or as `RLock`."""

    def __init__(self, threads: Threads, *, again: bool = False) -> None:
        self._threads, self._again = threads, again
        self._owner: Any = None
        self._depth = 0
        self._waiting: deque[Thread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._threads.me()
        who = me or self._threads
        if self._again and self._owner is who:
            self._depth += 1
            return True
        if me is not None and blocking:
            self._threads.perhaps_preempt(me)
        while self._owner is not None:
            if not blocking:
                return False
            assert self._owner is not who, "a lock is taken twice"
            if me is None:
                self._owner.run_on()
            else:
                self._waiting.append(me)
                me.wants = self
                try:
                    me.park()
                finally:
                    me.wants = None
                    if me in self._waiting:  # something else woke it
                        self._waiting.remove(me)
        self._owner, self._depth = who, 1
        return True

    def release(self) -> None:
        me = self._threads.me()
        if self._owner is not (me or self._threads):
            assert me is not None
            assert me.process.dead, "a lock is let go by who does not hold it"
            return  # it unwinds out of a wait
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._waiting:
                self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Condition:
    """As `threading.Condition`."""

    def __init__(self, threads: Threads, lock: Lock | None = None) -> None:
        self._threads, self._lock = threads, lock or Lock(threads, again=True)
        self._waiting: list[Thread] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        me = self._threads.me()
        assert me is not None, "the event loop waits for a condition"
        depth = self._lock._depth
        self._waiting.append(me)
        self._lock._depth = 1
        self._lock.release()
        try:
            return me.park(timeout)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            if not me.process.dead:
                self._lock.acquire()
                self._lock._depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._threads.loop.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - self._threads.loop.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            thread.wake()

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """As `threading.Event`."""

    def __init__(self, threads: Threads) -> None:
        self._condition, self._set = Condition(threads), False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._condition.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            with self._condition:
                self._condition.wait_for(lambda: self._set, timeout)
        return self._set


class Threads:
    """Stands in for the module `threading`. `preempts` is the chance to lose the processor where a lock is taken."""

    TIMEOUT_MAX = 1e9

    def __init__(self, loop: VirtualLoop, report: Report, preempts: float) -> None:
        self.loop, self.report, self._preempts = loop, report, preempts
        self.main = getcurrent()
        self._rng = random.Random(loop.rng.random())
        self._of: dict[Any, Thread] = {}

    def me(self) -> Thread | None:
        """The thread that runs now; None: the event loop."""
        running = getcurrent()
        return None if running is self.main else self._of[running]

    def perhaps_preempt(self, me: Thread) -> None:
        if self._preempts and not me.process.dead and self._rng.random() < self._preempts:
            me.preempted = True
            try:
                me.park(self._rng.random() * WAKE_S)
            finally:
                me.preempted = False

    def Thread(  # noqa: N802 - as the module has it
        self,
        target: Callable[..., object],
        name: str = "thread",
        args: tuple[Any, ...] = (),
        daemon: bool = True,
    ) -> Thread:
        thread = Thread(self, target, name, args)
        self._of[thread._greenlet] = thread
        return thread

    def Lock(self) -> Lock:  # noqa: N802
        return Lock(self)

    def RLock(self) -> Lock:  # noqa: N802
        return Lock(self, again=True)

    def Condition(self, lock: Lock | None = None) -> Condition:  # noqa: N802
        return Condition(self, lock)

    def Event(self) -> Event:  # noqa: N802
        return Event(self)

    def current_thread(self) -> Thread | None:
        return self.me()

    def main_thread(self) -> Thread | None:
        """Of the process that runs now."""
        process = PROCESS.get()
        return process.main if process is not None else None

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`."""
        me = self.me()
        assert me is not None, "the event loop sleeps"
        until = self.loop.now + seconds
        while (left := until - self.loop.now) > 0:
            me.park(left)

    def start_main(self, process: Process, target: Callable[[], object]) -> None:
        """The first thread of a process that is no service of the event loop."""

        def begin() -> None:
            process.main = self.Thread(target, "main")
            process.main.start()

        process.run_in(begin)
