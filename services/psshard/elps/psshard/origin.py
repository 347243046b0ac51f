"""Where a job starts from, and how its parameters lie on its shards. Plain state; the leader guards it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from elps.contracts.codec import loads
from elps.contracts.epoch import Epoch
from elps.contracts.errors import ElpsError, InvalidDocument, ProtocolError, TaskError
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.messages import Address, HostJob
from elps.psshard.assignment import Assignment
from elps.psshard.core.commands import Follow
from elps.psshard.core.inheriting import History, Inheritance
from elps.psshard.core.moving import Moving
from elps.psshard.core.replicating import Replicas
from elps.psshard.core.rules import Rules
from elps.psshard.core.weighing import Weighing
from elps.psshard.identity import Identity
from elps.psshard.wave import Wave
from elps.storage.checkpoints import Manifest
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

Source = Manifest | Inheritance | None
"""What a job begins, or begins again, from; None: version 0, brought by a trainer."""


class Origin:
    """A checkpoint or version 0; the identity that all trainers share; the skips; the placement."""

    def __init__(self, host: HostJob) -> None:
        self._host = host
        self.identity: Identity | None = None  #: set by a checkpoint or by the first ready trainer
        self.manifest: Manifest | None = None  #: what the job was last opened from; None: version 0
        self.accepted = (
            False  #: `identity` is what this term's first trainer found, not what was before
        )
        self.damaged: set[str] = set()  #: checkpoints that could not be loaded
        self.skips: list[Interval] = []  #: granted, in order; they survive every reset
        self.slices: list[tuple[int, int, int]] = []  #: partition number, first element, end
        self.placed: dict[PartitionId, ShardId] = {}
        self.addresses = {a.shard: a for a in host.shards}  #: of all shards that may hold any
        self.targets = [a.shard for a in host.shards]  #: those that are to
        self.weighing = Weighing()  #: how fast they are
        self._carried: int | None = None  #: version at which the map was exchanged last
        self._inherited: Inheritance | None = None  #: what the last opening went on from
        self.history: History | None = None  #: what the values of the epoch in force have come from

    @property
    def start(self) -> int:
        """Version that the epoch in force began at."""
        if self._carried is not None:
            return self._carried
        if self._inherited is not None:
            return self._inherited.version
        return self.manifest.iteration if self.manifest is not None else 0

    @property
    def from_trainer(self) -> bool:
        """Whether the first values are to come from a trainer."""
        return self.manifest is None and self._inherited is None

    def remember(self, skips_data: bytes | None, manifests: Sequence[Manifest]) -> Manifest | None:
        """Take what the store holds; returns the checkpoint to start from. `TaskError` if it does not fit the job."""
        self.remember_skips(skips_data)
        usable = self.usable(manifests)
        if usable is None:
            if (lost := self._host.progress.checkpoint) is not None:
                raise TaskError(f"the checkpoint of iteration {lost} is gone from the store")
            return None
        document = self._host.document
        for name, then, now in (
            ("batch.global", usable.batch, document.batch.global_),
            ("batch.granule", usable.granule, document.batch.granule),
            ("dtype", usable.dtype, document.dtype),
        ):
            if then != now:
                raise TaskError(
                    f"the checkpoint was written with {name} {then}, the job says {now}"
                )
        self.identity = Identity.of_manifest(usable)
        self.add_skips([Interval(lo, hi) for lo, hi in usable.skips])
        return usable

    def remember_skips(self, data: bytes | None) -> None:
        """Take the list of granted skips that the store holds."""
        self.add_skips(_read_skips(data))

    def usable(self, manifests: Sequence[Manifest]) -> Manifest | None:
        """The newest checkpoint that is not known to be damaged."""
        return next((m for m in manifests if m.name not in self.damaged), None)

    def accept(self, known: Identity, found: Identity) -> bool:
        """Whether the first trainer since the job goes on may find other data or code; it is what they are from now on.

        The others must find the same as it.
        """
        willing = self._host.document.on_change == "accept" and not self.from_trainer
        if not willing or self.accepted or not known.fits(found):
            return False
        self.accepted, self.identity = True, found
        return True

    def condemn(self) -> str | None:
        """The checkpoint in use cannot be loaded: its name, the first time that this is told."""
        name = self.manifest.name if self.manifest is not None else ""
        if name in self.damaged:
            return None
        self.damaged.add(name)
        return name

    def add_skips(self, skips: list[Interval]) -> None:
        """Keep more granted skips."""
        self.skips = sorted({*self.skips, *skips})

    def lay_out(self, source: Source, epoch: Epoch) -> Rules:
        """Begin under an epoch: cut and place the parameters. `TaskError` when they cannot be laid out.

        What is inherited lies where it lies, and keeps its history if all that owned it say so.
        """
        assert self.identity is not None
        document = self._host.document
        try:
            rules = self.identity.rules(document)
            elements, identity = self.identity.read_layout().size, self.identity.text
            if isinstance(source, Manifest):
                slices = [(n, p.start, p.stop) for n, p in enumerate(source.partitions)]
            elif isinstance(source, Inheritance):
                slices = source.slices
            else:
                slices = self.identity.slices(document)
            if not _tiles(slices, elements):
                raise ProtocolError("the partitions that are there do not add up to them")
            sizes = [stop - start for _, start, stop in slices]
            by_number = {PartitionId(n): size for n, size in enumerate(sizes)}
            placed = self.weighing.target(by_number, self.targets, self.placed)
        except (ElpsError, ValueError) as error:
            raise TaskError(f"the task's parameters cannot be laid out: {error}") from error
        self.manifest = source if isinstance(source, Manifest) else None
        inherited = self._inherited = source if isinstance(source, Inheritance) else None
        self.slices, self.placed, self._carried = slices, placed, None
        self.history = History(epoch, identity, elements)
        if inherited is not None:
            self.placed = inherited.placed
            if not inherited.promoted:  # else an owner that lives on, unheard, has another one
                self.history = inherited.history
            self.add_skips(inherited.skips)
        return rules

    @property
    def holders(self) -> list[ShardId]:
        """Shards with partitions, in order."""
        return sorted(set(self.placed.values()))

    def want(self, shards: list[Address]) -> None:
        """These are to hold the partitions."""
        self.addresses |= {a.shard: a for a in shards}
        self.targets = [a.shard for a in shards]

    def forget(self, shards: Collection[ShardId]) -> None:
        """These are gone."""
        self.addresses = {s: a for s, a in self.addresses.items() if s not in shards}
        self.targets = [s for s in self.targets if s not in shards]

    def moving(self, numbers: Iterator[int]) -> Moving:
        """The moves to come, from where the partitions are laid out."""
        return Moving(self._sizes, self.placed, numbers=numbers, weighing=self.weighing)

    def replicas(self, numbers: Iterator[int]) -> Replicas:
        """The replicas to come, if the job wants any."""
        sizes = self._sizes if self._host.document.replicas else {}
        return Replicas(sizes, _Hosts(self), numbers)

    @property
    def _sizes(self) -> dict[PartitionId, int]:
        itemsize = np.dtype(self._host.document.dtype).itemsize
        return {PartitionId(n): (stop - start) * itemsize for n, start, stop in self.slices}

    def carry(self, placed: dict[PartitionId, ShardId], version: int) -> None:
        """The map is exchanged: the next epoch begins with the values that are on the shards."""
        self.placed, self._carried = placed, version

    def wave(self, follow: Follow) -> Wave:
        """The leader's word for copies that are to follow."""
        bounds = {n: (start, stop) for n, start, stop in self.slices}
        return Wave(
            number=follow.wave,
            copies=[(m.partition, *bounds[m.partition], m.source, m.target) for m in follow.moves],
            addresses={
                m.target: (self.addresses[m.target].host, self.addresses[m.target].port)
                for m in follow.moves
            },
            standing=follow.standing,
        )

    def skips_in_force(self, geometry: Geometry) -> list[Interval]:
        """Those that an opening begins with."""
        if self._inherited is not None:
            return self._inherited.in_force(self.skips, geometry)
        return self.skips

    def assignment(self, shard: ShardId, iterations: int, skips: list[Interval]) -> Assignment:
        """What a shard is told; `skips` are those of the epoch in force."""
        assert self.identity is not None
        assert self.history is not None
        document, carried = self._host.document, self._carried is not None
        return Assignment(
            partitions=self._on(shard),
            samples=self.identity.samples,
            batch=document.batch.global_,
            granule=document.batch.granule,
            iterations=iterations,
            start=self.start,
            checkpoint=None if carried or self.manifest is None else self.manifest.name,
            carried=carried,
            inherited=self._inherited is not None and not carried,
            history=self.history,
            skips=[(i.lo, i.hi) for i in skips],
        )

    def map(self) -> dict[str, Any]:
        """What a trainer is told: which shard holds what, and where it listens."""
        return {
            "shards": [
                {"id": a.shard, "host": a.host, "port": a.port, "partitions": self._on(a.shard)}
                for a in self.addresses.values()
            ]
        }

    def _on(self, shard: ShardId) -> list[tuple[int, int, int]]:
        return [s for s in self.slices if self.placed[PartitionId(s[0])] == shard]


class _Hosts(Mapping[ShardId, str]):
    """The hosts of all shards, those included that are yet to come."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin

    def __getitem__(self, shard: ShardId) -> str:
        return self._origin.addresses[shard].host

    def __iter__(self) -> Iterator[ShardId]:
        return iter(self._origin.addresses)

    def __len__(self) -> int:
        return len(self._origin.addresses)


def _tiles(slices: Sequence[tuple[int, int, int]], size: int) -> bool:
    """Whether consecutive slices cover a vector."""
    bounds = [0, *(stop for _, _, stop in slices)]
    return bounds[-1] == size and all(
        start == bound < stop for (_, start, stop), bound in zip(slices, bounds, strict=False)
    )


def _read_skips(data: bytes | None) -> list[Interval]:
    """The list of skips in the store; one that cannot be read was never written by us and is no list."""
    if data is None:
        return []
    try:
        return [Interval(lo, hi) for lo, hi in msgspec.convert(loads(data), list[tuple[int, int]])]
    except (InvalidDocument, msgspec.ValidationError):
        return []
