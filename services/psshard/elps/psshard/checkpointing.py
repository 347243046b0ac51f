"""The shards' reports of one checkpoint, gathered until the manifest can be written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.messages import HostJob
from elps.contracts.state import Progress
from elps.psshard.identity import Identity
from elps.psshard.reports import Written
from elps.storage.checkpoints import Manifest, PartitionEntry, checkpoint_name
from elps.stream.interval import Interval


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


def manifest_of(
    host: HostJob,
    identity: Identity,
    collecting: Collecting,
    entries: list[PartitionEntry],
    skips: Iterable[Interval],
    progress: Progress,
    at: float,
) -> Manifest:
    """The manifest that makes a checkpoint valid. `at` is Unix time, s."""
    document = host.document
    return Manifest(
        job=host.job,
        name=collecting.name,
        term=host.term.number,
        iteration=collecting.version,
        at=at,
        layout=identity.layout,
        dtype=document.dtype,
        partitions=entries,
        samples=identity.samples,
        batch=document.batch.global_,
        granule=document.batch.granule,
        test_samples=identity.test_samples,
        skips=[(i.lo, i.hi) for i in skips],
        fingerprint=identity.fingerprint,
        code_hash=identity.code_hash,
        metrics=progress.metrics,
        metrics_iteration=progress.metrics_iteration,
        loss=progress.loss,
    )
