"""A shard's share in one job: the part's decisions carried out on arrays, for any number of threads.

Lock order: the member's lock is held only for decisions, never while arrays are added, written or sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from elps.contracts.epoch import NO_EPOCH, Epoch, Standing, standing
from elps.contracts.ids import PartitionId, WorkerId
from elps.contracts.job import JobDocument
from elps.psshard.aside import Aside
from elps.psshard.assignment import Assignment
from elps.psshard.core.part import Advance, Part, Reading, Verdict
from elps.psshard.reports import Frozen, Missed, Progressed, Report, Written
from elps.psshard.slab import Array, Slab
from elps.stream.interval import Interval
from elps.wire.frames import Status


class Member:
    """One job on one shard. `report` is called from any thread, without a lock held."""

    def __init__(self, document: JobDocument) -> None:
        self.document = document
        self._reporters: tuple[
            Callable[[Report], None], ...
        ] = ()  #: who is told; replaced, never changed
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._epoch = NO_EPOCH  #: of the newest assignment
        self._part: Part | None = None
        self._slab: Slab | None = None
        self._assignment: Assignment | None = None
        self._at: Counter[int] = Counter()  #: newest version to number of partitions, of those held
        self._awaited: set[PartitionId] = set()  #: partitions whose first values have not come
        self._called_back: dict[
            WorkerId, int
        ] = {}  #: pulls with a ticket up to this are not waited for
        self._aside: Aside | None = None
        self._written: Written | None = None  #: of `_aside`, once it is in the store
        self._low = -1  #: version last reported
        self._closed = False

    # --- the leader's word --------------------------------------------------------------------------------------------

    def assign(self, epoch: Epoch, assignment: Assignment) -> bool:
        """Take an assignment; True when it is new, its values must be brought. A repeat reports progress anew."""
        with self._changed:
            if standing(epoch, self._epoch) is Standing.STALE or self._closed:
                return False
            if epoch == self._epoch:
                assert self._part is not None
                for interval in assignment.skipped:
                    self._part.grant(epoch, interval)
                low, new = self._low, False
            else:
                assignment.check(self.document.dtype)
                part = Part(epoch, assignment.geometry, assignment.skipped)
                slab = Slab(self.document, assignment.partitions, assignment.iterations)
                # What may raise is done: from here on the epoch and all that is of it change together.
                self._epoch, self._assignment, new, low = epoch, assignment, True, -1
                self._part, self._slab = part, slab
                self._awaited = {PartitionId(p) for p, _, _ in assignment.partitions}
                self._at = Counter()
                self._called_back, self._aside, self._low = {}, None, -1
                self._changed.notify_all()
        if new and not assignment.partitions:
            # A model may have fewer partitions than the job has shards: nobody ever waits for none.
            self._progressed(epoch, assignment.iterations)
        elif not new:
            self._advance_all(epoch)
            if low >= 0:
                self.report(Progressed(epoch, low))
        return new

    def bring(
        self, epoch: Epoch, partition: PartitionId, arrays: dict[str, Array], steps: int
    ) -> None:
        """Hand in a partition's first values; repeats change nothing."""
        with self._changed:
            slab, part, assignment = self._slab, self._part, self._assignment
            if epoch != self._epoch or partition not in self._awaited:
                return
            assert slab is not None
            assert part is not None
            assert assignment is not None
            slab.load(partition, assignment.start, arrays)
            part.hold(partition, assignment.start, steps)
            self._at[assignment.start] += 1
            self._awaited.discard(partition)
            done = not self._awaited
            self._changed.notify_all()
        if done:
            self._progressed(epoch, assignment.start)

    def gate(self, epoch: Epoch, version: int) -> None:
        """Every partition of the job holds `version`."""
        with self._lock:
            if self._part is not None:
                self._part.announce_gate(epoch, version)
        self._advance_all(epoch)

    def freeze(self, epoch: Epoch, interval: Interval, attempt: int) -> None:
        """Refuse an interval and report whether nothing of it was accepted."""
        with self._lock:
            clean = self._part is not None and self._part.freeze(epoch, interval)
        self.report(Frozen(epoch, interval, attempt, clean))

    def thaw(self, epoch: Epoch, interval: Interval) -> None:
        """Accept an interval again."""
        with self._lock:
            if self._part is not None:
                self._part.thaw(epoch, interval)

    def grant(self, epoch: Epoch, interval: Interval) -> None:
        """Count an interval as skipped."""
        with self._lock:
            if self._part is not None:
                self._part.grant(epoch, interval)
        self._advance_all(epoch)

    def call_back(self, epoch: Epoch, worker: WorkerId, ticket: int) -> None:
        """Answer a worker's pulls up to `ticket` with "ask for a lease", those on their way included."""
        with self._changed:
            if epoch == self._epoch:
                self._called_back[worker] = max(ticket, self._called_back.get(worker, 0))
                self._changed.notify_all()

    def checkpoint(self, epoch: Epoch, version: int) -> Aside | None:
        """Begin to copy a version aside.

        None when there is nothing to begin: the epoch is stale, the copy is being written (a written one is reported
        again), or the version was left before the leader's word came.
        """
        again: Report | None = None
        with self._lock:
            if epoch != self._epoch or self._part is None or self._slab is None:
                return None
            if self._aside is not None and self._aside.version == version:
                again = self._written
            elif self._part.rests_at(version):
                self._aside, self._written = (
                    Aside(
                        version, {p: self._part.steps(p) for p in self._part.partitions}, self._slab
                    ),
                    None,
                )
                return self._aside
            else:
                again = Missed(epoch, version)
        if again is not None:
            self.report(again)
        return None

    def wrote(self, aside: Aside, digests: dict[PartitionId, dict[str, int]]) -> None:
        """Every chunk of a copy is in the store."""
        with self._lock:
            if aside is not self._aside:
                return
            self._written = Written(
                self._epoch,
                aside.version,
                {p: (aside.steps[p], digests[p]) for p in aside.partitions},
            )
            report = self._written
        self.report(report)

    def current(self, aside: Aside) -> bool:
        """Whether a copy is still wanted."""
        with self._lock:
            return aside is self._aside and not self._closed

    def close(self) -> None:
        """The job is dropped: whoever waits is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- gradients ----------------------------------------------------------------------------------------------------

    def push(
        self,
        epoch: Epoch,
        iteration: int,
        interval: Interval,
        partition: PartitionId,
        gradient: Array | None,
    ) -> Verdict:
        """Offer a gradient that was received whole; None adds nothing. Every thread may call it."""
        with self._lock:
            part, slab = self._part, self._slab
            if part is None or slab is None or self._closed:
                return Verdict.STALE
            verdict = part.offer(epoch, iteration, interval, partition)
        if verdict is not Verdict.ACCEPT:
            return verdict
        if gradient is not None:
            slab.add(partition, interval, gradient)
        with self._lock:
            part.added(partition)
        self._advance(part, slab, partition)
        return verdict

    def partition_bytes(self, epoch: Epoch, partition: PartitionId) -> int | None:
        """Bytes of a partition's part of a push; None for a partition not held under this epoch."""
        with self._lock:
            if epoch != self._epoch or self._slab is None or partition not in self._slab:
                return None
            return self._slab.length(partition) * self._slab.dtype.itemsize

    def _advance_all(self, epoch: Epoch) -> None:
        with self._lock:
            part, slab = self._part, self._slab
            if part is None or slab is None or epoch != self._epoch:
                return
            partitions = part.partitions
        for partition in partitions:
            self._advance(part, slab, partition)

    def _advance(self, part: Part, slab: Slab, partition: PartitionId) -> None:
        """Write a partition's next version if it is due, and the one after it if that is due at once."""
        while True:
            with self._lock:
                advance = part.due(partition)
                aside = self._aside
            if advance is None:
                return
            if aside is not None and aside.version == advance.iteration:
                aside.take(partition)
            slab.write(advance)
            self._advanced(part, advance)

    def _advanced(self, part: Part, advance: Advance) -> None:
        with self._changed:
            part.advanced(advance)
            self._changed.notify_all()
            if part is not self._part:
                return
            self._at[advance.iteration + 1] += 1
            self._at -= Counter((advance.iteration,))  # which drops a count of 0
            low = min(self._at)
            rose = low > self._low and not self._awaited
            self._low = max(self._low, low) if not self._awaited else self._low
            epoch = self._epoch
        if rose:
            self.report(Progressed(epoch, low))

    def _progressed(self, epoch: Epoch, version: int) -> None:
        with self._lock:
            if epoch != self._epoch:
                return
            self._low = max(self._low, version)
        self.report(Progressed(epoch, version))

    # --- values -------------------------------------------------------------------------------------------------------

    def wait_for(
        self,
        epoch: Epoch,
        partition: PartitionId,
        version: int,
        worker: WorkerId,
        ticket: int,
        timeout_s: float,
    ) -> Status | None:
        """Wait until a version can be read: OK, or why it cannot; None when the time passes."""
        with self._changed:
            answer = self._look(epoch, partition, version, worker, ticket)
            if answer is None:
                self._changed.wait_for(
                    lambda: self._look(epoch, partition, version, worker, ticket) is not None,
                    timeout_s,
                )
                answer = self._look(epoch, partition, version, worker, ticket)
            return answer

    def _look(
        self, epoch: Epoch, partition: PartitionId, version: int, worker: WorkerId, ticket: int
    ) -> Status | None:
        if self._closed:
            return Status.STALE
        match standing(epoch, self._epoch):
            case Standing.STALE:
                return Status.STALE
            case Standing.NEWER:
                return None
        assert self._part is not None
        match self._part.reading(partition, version):
            case Reading.READY:
                return Status.OK
            case Reading.GONE:
                return Status.GONE
        return Status.CALLED_BACK if self._called_back.get(worker, 0) >= ticket else None

    def wait_assigned(self, epoch: Epoch, timeout_s: float) -> bool:
        """Wait until this epoch's assignment is here, or is known never to come."""
        with self._changed:
            return self._changed.wait_for(
                lambda: standing(epoch, self._epoch) is not Standing.NEWER or self._closed,
                timeout_s,
            )

    def view(self, epoch: Epoch, partition: PartitionId, version: int) -> memoryview | None:
        """The bytes of a version; they stay as they are until `still_readable` says otherwise.

        None when the epoch is over: another one's arrays lie elsewhere.
        """
        slab = self._slab_of(epoch)
        return slab.values(partition, version).data.cast("B") if slab is not None else None

    def _slab_of(self, epoch: Epoch) -> Slab | None:
        with self._lock:
            return self._slab if epoch == self._epoch else None

    def still_readable(self, epoch: Epoch, partitions: list[PartitionId], version: int) -> bool:
        """Whether none of what was read of a version has been overwritten meanwhile."""
        with self._lock:
            if epoch != self._epoch or self._part is None:
                return False
            return all(self._part.reading(p, version) is Reading.READY for p in partitions)

    def gather(
        self, epoch: Epoch, partitions: list[PartitionId], version: int, into: Array
    ) -> bool:
        """Copy several small partitions in one go; False when one has been overwritten meanwhile."""
        slab, at = self._slab_of(epoch), 0
        if slab is None:
            return False
        for p in partitions:
            values = slab.values(p, version)
            np.copyto(into[at : at + values.size], values)
            at += values.size
        return self.still_readable(epoch, partitions, version)

    @contextlib.contextmanager
    def reporting_to(self, report: Callable[[Report], None]) -> Iterator[None]:
        """Send reports there too, for as long as a link lasts. Two links may overlap: a leader drops repeats."""
        with self._lock:
            self._reporters = (*self._reporters, report)
        try:
            yield
        finally:
            with self._lock:
                self._reporters = tuple(r for r in self._reporters if r is not report)

    def report_always_to(self, report: Callable[[Report], None]) -> None:
        """Send reports there: the leader is on this shard."""
        with self._lock:
            self._reporters = (*self._reporters, report)

    def report(self, what: Report) -> None:
        """Tell the leader; called without the lock."""
        for report in self._reporters:
            report(what)

    @property
    def closed(self) -> bool:
        """Whether the job is dropped here."""
        return self._closed

    @property
    def held_bytes(self) -> int:
        """Memory of the arrays."""
        slab = self._slab
        return slab.size_bytes if slab is not None else 0

    @property
    def partitions(self) -> list[PartitionId]:
        """All partitions assigned here, in order."""
        with self._lock:
            if self._assignment is None:
                return []
            return sorted(PartitionId(p) for p, _, _ in self._assignment.partitions)

    def low_version(self) -> int:
        """Version that all partitions here hold; -1 before there is one."""
        with self._lock:
            return self._low
