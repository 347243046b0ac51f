"""A shard's share in one job: the part's decisions carried out on arrays, for any number of threads.

Lock order: the member's lock is held only for decisions, never while arrays are added, written or sent.
"""

from __future__ import annotations

from collections import Counter

import structlog

from elps.contracts.epoch import Epoch, Standing, standing
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.psshard.assignment import Assignment, NotHere
from elps.psshard.block import Block, Sealed
from elps.psshard.copies import Connect, Copies
from elps.psshard.core.applying import part_for
from elps.psshard.core.labour import Labour
from elps.psshard.core.part import Advance, Part, Verdict
from elps.psshard.ending import Ending
from elps.psshard.estate import Estate
from elps.psshard.following import Copy, Following
from elps.psshard.live import blocks_of
from elps.psshard.measuring import Measuring
from elps.psshard.reports import Frozen, Progressed, Trouble
from elps.psshard.shelf import Shelf
from elps.psshard.slab import Array, Slab
from elps.psshard.voice import Voice
from elps.psshard.wave import Wave
from elps.psshard.working import Working
from elps.runtime.emulating import Machine
from elps.stream.interval import Interval

log = structlog.get_logger()


class Member(Ending, Working, Measuring):
    """One job on one shard."""

    def __init__(
        self,
        document: JobDocument,
        estate: Estate | None = None,
        machine: Machine | None = None,
    ) -> None:
        """`estate` is what the term before has left here; `machine` is what this one is to be like."""
        Shelf.__init__(self)
        Voice.__init__(self)
        self.document = document
        self._assignment: Assignment | None = None
        self._at: Counter[int] = Counter()  #: newest version to number of partitions, of those held
        self._awaited: set[PartitionId] = set()  #: partitions whose first values have not come
        self._aside = self._written = None
        self._low = -1  #: version last reported
        self._copies = Copies(document)
        self._machine, self._labour = machine or Machine(), Labour()
        self._estate = estate  #: until it is assigned, or something else is

    # --- the leader's word --------------------------------------------------------------------------------------------

    def assign(self, epoch: Epoch, assignment: Assignment) -> bool:
        """Take an assignment; True when it is new. A repeat reports progress anew."""
        with self._changed:
            if standing(epoch, self._epoch) is Standing.STALE or self._closed:
                return False
            if epoch == self._epoch:
                assert self._part is not None
                for interval in assignment.skipped:
                    self._part.grant(epoch, interval)
                low, new, trouble = self._low, False, self.trouble_of(epoch)
            else:
                assignment.check(self.document.dtype)
                geometry, bound = assignment.geometry, self.document.bound
                clips = self.document.optimizer.clip_norm is not None
                part = part_for(bound, clips=clips)(epoch, geometry, assignment.skipped)
                blocks = self._blocks_for(assignment)
                # What may raise is done: from here on the epoch and all that is of it change together.
                self._copies.turn(self._owned() if assignment.carried else None, blocks)
                self._epoch, self._assignment = epoch, assignment
                new, low, trouble = True, -1, None
                self._part, self._slab = part, Slab(self.document, blocks)
                self._awaited = {PartitionId(p) for p, _, _ in assignment.partitions}
                self._at = Counter()
                self._drop_aside()
                self._called_back, self._low = {}, -1
                self._estate = None
                if assignment.carried or assignment.inherited:
                    for p in sorted(self._awaited):
                        applied = blocks[p].applied() or ()
                        newest = blocks[p].newest()
                        part.hold(p, *newest, first=assignment.start, applied=applied)
                        self._at[part.version(p)] += 1
                    self._awaited = set()
                self._changed.notify_all()
        if new and not assignment.partitions:
            # A model may have fewer partitions than the job has shards: nobody ever waits for none.
            self._progressed(epoch, assignment.iterations)
        elif new and (assignment.carried or assignment.inherited):
            self._progressed(epoch, min(self._at))
        elif trouble is not None:  # it may have been lost with a link
            self.report(trouble)
        elif not new:
            self._advance_all(epoch)
            self._tell_norms()
            if low >= 0:
                self.report(Progressed(epoch, low))
        return new

    def _owned(self) -> dict[PartitionId, Copy]:
        """Partitions held under the epoch before, which goes on under another map."""
        if self._assignment is None or self._slab is None:
            return {}
        bounds = {PartitionId(n): (lo, hi) for n, lo, hi in self._assignment.partitions}
        blocks = self._slab.blocks()
        return {p: Copy(block, bounds[p], block.newest()[0]) for p, block in blocks.items()}

    def _blocks_for(self, assignment: Assignment) -> dict[PartitionId, Block]:
        """New blocks, or those that are here; `ProtocolError` when one of these is not at the version."""
        if assignment.inherited and assignment.partitions:
            if self._estate is None:
                raise NotHere("nothing was left here by the term before")
            return self._estate.take(assignment)
        if not assignment.carried:  # of the inherited: who has come since, and has no part in it
            return blocks_of(
                self.document, assignment.partitions, assignment.iterations, assignment.untrained
            )
        copies, blocks = self.following.at(assignment.start), {}
        for number, _, _ in assignment.partitions:
            p = PartitionId(number)
            block = copies.get(p)
            if block is None and self._slab is not None and p in self._slab:
                block = self._slab[p]
            if block is None or block.newest()[0] != assignment.start:
                raise NotHere(f"partition {p} is not here at version {assignment.start}")
            blocks[p] = block
        return blocks

    def bring(
        self, epoch: Epoch, partition: PartitionId, arrays: dict[str, Array], steps: int
    ) -> None:
        """Hand in a partition's first values; repeats change nothing."""
        with self._changed:
            slab, part, assignment = self._slab, self._part, self._assignment
            if epoch != self._epoch or partition not in self._awaited or self._closed:
                return
            assert slab is not None
            assert part is not None
            assert assignment is not None
            slab.load(partition, assignment.start, steps, arrays)
            part.hold(partition, assignment.start, steps)
            self._at[assignment.start] += 1
            self._awaited.discard(partition)
            done = not self._awaited
            self._changed.notify_all()
        if done:
            self._first_values(epoch, assignment.start)

    def _first_values(self, epoch: Epoch, version: int) -> None:
        try:
            self._progressed(epoch, version)
        except Exception as error:
            if self._tell(epoch, "the first values", error):
                log.exception("shard_failed", job=self.document.id)

    def gate(self, epoch: Epoch, version: int) -> None:
        """Every partition of the job holds `version`."""
        with self._changed:
            if self._part is not None and epoch == self._epoch:
                self._part.announce_gate(epoch, version)
                self._copies.left_behind(version)
                self._changed.notify_all()
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

    # --- copies that follow -------------------------------------------------------------------------------------------

    def follow(self, epoch: Epoch, wave: Wave, me: ShardId, connect: Connect) -> None:
        """Make room for copies of partitions owned elsewhere, and send copies of those that are owned here.

        A repeat has it told again how they stand. `ProtocolError` for a partition that is not here.
        """
        wave.check()
        with self._changed:
            if epoch != self._epoch or self._slab is None or self._closed:
                return
            assert self._assignment is not None
            here = self._slab.blocks(without=self._awaited)
            feeders = self._copies.begin(
                (epoch, wave.number), wave, me, here, self._assignment, connect, self.report
            )
            standing = self._copies.standing(replicas=wave.standing)
        for feeder in feeders:
            feeder.start()
        for report in standing:
            self.report(report)

    def unfollow(self, epoch: Epoch, wave: int, *, replicas: bool = False) -> None:
        """The copies of a wave are not wanted any more."""
        with self._changed:
            self._copies.unfollow((epoch, wave), replicas=replicas)

    @property
    def following(self) -> Following:
        """Copies of partitions owned elsewhere."""
        return self._copies.following

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
            aside = self._aside
        if verdict is not Verdict.ACCEPT:
            return verdict
        try:
            if aside is not None and part.leaves(aside.version, iteration):
                aside.take(partition)
            self._add(slab, partition, iteration, interval, gradient)
            with self._lock:
                part.added(partition, iteration)
            self._advance(part, slab, partition)
        except Sealed:
            return Verdict.STALE
        except Exception as error:
            if self._tell(epoch, f"samples {interval}, partition {partition}", error):
                log.exception("shard_failed", job=self.document.id)
            return Verdict.STALE
        return verdict

    def _tell(self, epoch: Epoch, what: str, error: Exception) -> bool:
        """Tell the leader of a fault of ours: what was accepted is not brought again, so all would wait for it.

        True the first time: to write a traceback takes long, and whoever pushed waits for an answer.
        """
        first = self.trouble_of(epoch) is None
        self.report(Trouble(epoch, f"{what}: {type(error).__name__}: {error}"))
        return first

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
        try:
            while True:
                self._measure(part, slab, partition)
                with self._lock:
                    advance = part.due(partition)
                    aside = self._aside
                if advance is None:
                    return
                if aside is not None and aside.version == advance.iteration:
                    aside.take(partition)
                self._write(slab, advance)
                self._advanced(part, advance)
        except Sealed:
            return

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

    @property
    def closed(self) -> bool:
        """Whether the job is dropped here."""
        return self._closed

    @property
    def held_bytes(self) -> int:
        """Memory of the arrays."""
        slab = self._slab
        estate = self._estate
        held = slab.size_bytes if slab is not None else 0
        left = estate.size_bytes if estate is not None else 0
        return self._copies.size_bytes + left + held

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
