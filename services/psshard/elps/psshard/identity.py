"""What all trainers of a job must agree on, and with the checkpoint it resumes from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from elps.contracts.codec import encode
from elps.contracts.errors import ProtocolError
from elps.contracts.job import JobDocument
from elps.placement import partitions
from elps.psshard.core.rules import Rules
from elps.storage.checkpoints import Manifest
from elps.stream.geometry import Geometry
from elps.tasks.layout import Layout


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The job as a trainer found it: its data and its parameters."""

    samples: Annotated[int, Meta(ge=1, le=2**53)]
    test_samples: Annotated[int, Meta(ge=0, le=2**53)]
    layout: dict[str, Any]
    fingerprint: str
    """Digest of the data and of the order of samples."""
    code_hash: str
    """Digest of the task's code."""

    @classmethod
    def of_manifest(cls, manifest: Manifest) -> Identity:
        """As it was when a checkpoint was written."""
        return cls(
            samples=manifest.samples,
            test_samples=manifest.test_samples,
            layout=manifest.layout,
            fingerprint=manifest.fingerprint,
            code_hash=manifest.code_hash,
        )

    @property
    def text(self) -> str:
        """All of it, equal for equal ones."""
        return encode(self).decode()

    @classmethod
    def of_text(cls, text: str) -> Identity:
        """The other way round; `ProtocolError` when it is none."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"an identity that cannot be read: {error}") from None

    def fits(self, other: Identity) -> bool:
        """Whether a job can go on with another one's data and code: what it counts and trains is alike."""
        return (self.samples, self.test_samples, self.layout) == (
            other.samples,
            other.test_samples,
            other.layout,
        )

    def difference(self, other: Identity) -> str:
        """How another one differs, for people; empty when it is the same."""
        return "; ".join(
            f"{text}: {str(mine)[:80]} and {str(theirs)[:80]}"
            for text, mine, theirs in (
                ("number of samples", self.samples, other.samples),
                ("number of held-out samples", self.test_samples, other.test_samples),
                ("parameters", self.layout, other.layout),
                ("content of the data", self.fingerprint, other.fingerprint),
                ("code of the task", self.code_hash, other.code_hash),
            )
            if mine != theirs
        )

    def read_layout(self) -> Layout:
        """The layout; `ProtocolError` when it is none."""
        return Layout.from_wire(self.layout)

    def slices(self, document: JobDocument) -> list[tuple[int, int, int]]:
        """Partition number, first element and end, of all partitions."""
        layout = self.read_layout()
        if layout.dtype.name != document.dtype:
            raise ProtocolError(f"parameters of {layout.dtype}, the job says {document.dtype}")
        cut = partitions(layout.size, layout.dtype.itemsize, document.shards.max)
        return [(number, part.start, part.stop) for number, part in enumerate(cut)]

    def rules(self, document: JobDocument) -> Rules:
        """What the document says to the clock, for data of this size."""
        geometry = Geometry(self.samples, document.batch.global_, document.batch.granule)
        every = document.evaluate.every or document.evaluate.every_passes * geometry.per_pass
        return Rules(
            geometry=geometry,
            iterations=document.iterations or (document.passes or 1) * geometry.per_pass,
            test_samples=self.test_samples,
            evaluate_every=every,
            evaluate_at_end=document.evaluate.at_end,
            checkpoint_every=document.checkpoint.every,
            checkpoint_every_s=document.checkpoint.every_s,
            target_metric=document.stop.metric,
            target=document.stop.target,
            target_is_maximum=document.stop.mode == "max",
            patience=document.stop.patience,
            min_delta=document.stop.min_delta,
            time_s=document.stop.time_s,
            clip_norm=document.optimizer.clip_norm,
            staleness=document.bound,
            first_lease_s=document.limits.first_iteration_s,
            slack=document.limits.slack,
            floor_s=document.limits.floor_s,
        )
