"""The shards' reports of one checkpoint, gathered until the manifest can be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.messages import HostJob
from elps.contracts.state import Progress
from elps.psshard.origin import Origin
from elps.psshard.reports import Written
from elps.storage.checkpoints import Manifest, PartitionEntry, checkpoint_name


class Collecting:
    """One checkpoint under way."""

    def __init__(
        self,
        epoch: Epoch,
        version: int,
        slices: Sequence[tuple[int, int, int]],
        placed: Mapping[PartitionId, ShardId],
    ) -> None:
        self.version = version
        self.name = checkpoint_name(epoch.term.number, epoch.n, version)
        self._slices = slices
        self._waiting = {
            placed[PartitionId(n)] for n, _, _ in slices
        }  #: shards that have not reported
        self._entries: dict[int, PartitionEntry] = {}

    def add(self, shard: ShardId, report: Written) -> list[PartitionEntry] | None:
        """Take a shard's report; all entries in order once every shard has reported, None before."""
        if report.version != self.version or shard not in self._waiting:
            return None
        for number, start, stop in self._slices:
            if (known := report.partitions.get(PartitionId(number))) is not None:
                steps, digests = known
                self._entries[number] = PartitionEntry(
                    start=start, stop=stop, steps=steps, digests=digests
                )
        self._waiting.discard(shard)
        if self._waiting or len(self._entries) < len(self._slices):
            return None
        return [self._entries[number] for number, _, _ in self._slices]


class Checkpointing:
    """At most one checkpoint is under way. Plain state; the leader guards it."""

    def __init__(self, host: HostJob, origin: Origin) -> None:
        self._host, self._origin = host, origin
        self._collecting: Collecting | None = None

    def forget(self) -> None:
        """An epoch is over, and what was under way with it."""
        self._collecting = None

    def begin(self, epoch: Epoch, version: int) -> None:
        """The shards are about to be told to write a version; a repeat changes nothing."""
        if self._collecting is None or self._collecting.version != version:
            self._collecting = Collecting(epoch, version, self._origin.slices, self._origin.placed)

    def take(
        self, shard: ShardId, report: Written, progress: Progress, at: float
    ) -> Manifest | None:
        """Take a shard's report; the manifest once every shard has reported. `at` is Unix time, s."""
        collecting, identity = self._collecting, self._origin.identity
        if collecting is None or identity is None:
            return None
        entries = collecting.add(shard, report)
        if entries is None:
            return None
        self._collecting = None
        document = self._host.document
        return Manifest(
            job=self._host.job,
            name=collecting.name,
            term=self._host.term.number,
            iteration=collecting.version,
            at=at,
            layout=identity.layout,
            dtype=document.dtype,
            partitions=entries,
            samples=identity.samples,
            batch=document.batch.global_,
            granule=document.batch.granule,
            test_samples=identity.test_samples,
            skips=[(i.lo, i.hi) for i in self._origin.skips],
            fingerprint=identity.fingerprint,
            code_hash=identity.code_hash,
            metrics=progress.metrics,
            metrics_iteration=progress.metrics_iteration,
            loss=progress.loss,
            best=progress.best,
            best_iteration=progress.best_iteration,
            stale=progress.stale,
        )
