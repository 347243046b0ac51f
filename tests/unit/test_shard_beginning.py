"""Where a term begins, whatever answers first: the shards, the store, or a trainer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import JobId, PartitionId, ShardId, WorkerId
from elps.contracts.messages import Address, HostJob
from elps.contracts.state import Progress
from elps.psshard.beginning import ANSWER_S, Beginning
from elps.psshard.core.awake import Awake
from elps.psshard.core.inheriting import Claim, History, Inheritance, Stock
from elps.psshard.identity import Identity
from elps.psshard.origin import Origin, Source

A, B = ShardId("a"), ShardId("b")
OPENED = Epoch(Term(1, 5), 1)
IDENTITY = Identity(
    samples=40,
    test_samples=0,
    layout={"dtype": "float32", "parameters": [["w", [20]]]},
    fingerprint="f",
    code_hash="c",
)


class Lead:
    """A leader as its beginning sees it."""

    def __init__(self, *, inherits: bool = True, checkpoint: int | None = None) -> None:
        document = parse_job({"task": "linear", "iterations": 9})
        self.host = HostJob(
            job=JobId("j"),
            document=document,
            term=Term(2, 6),
            secret="s",
            shards=[Address(shard=s, host="h", port=1) for s in (A, B)],
            workers=[WorkerId("j-w1")],
            progress=Progress(iteration=7, checkpoint=checkpoint),
            inherits=OPENED if inherits else None,
        )
        self.lock = threading.Lock()
        self.awake, self.at = Awake(0.0), 0.0
        self.epoch = Epoch(self.host.term, 0)
        self.reopened: list[str] = []
        self.goes_back = False
        self.keeper: Any = SimpleNamespace(skips=lambda: None, manifests=list, trouble="")
        self.origin = Origin(self.host)
        self.events: list[tuple[str, str]] = []
        self.reporter: Any = SimpleNamespace(
            event=lambda what, why: self.events.append((what, why)), progress=self.host.progress
        )
        self.opened: list[Source] = []
        self.failed: list[str] = []
        self.looks = 0
        self.beginning = Beginning(self.host, self)

    def now(self) -> float:
        return self.awake.at(self.at)

    def open(self, source: Source) -> None:
        assert self.beginning.holders == ({A, B} if isinstance(source, Inheritance) else set())
        self.opened.append(source)

    def reopen(self, reason: str, *, must_restore: bool) -> None:
        self.reopened.append(reason)

    def look_again(self) -> None:
        self.looks += 1

    def fail(self, reason: str) -> None:
        self.failed.append(reason)


def stock(*partitions: int) -> Stock:
    claims = tuple(Claim(PartitionId(p), 10 * p, 10 * p + 10, 7, 7) for p in partitions)
    return Stock(History(OPENED, IDENTITY.text, 20), OPENED, claims)


def test_what_shards_have_needs_neither_the_store_nor_a_trainer() -> None:
    lead = Lead()
    assert lead.beginning.asks
    assert lead.beginning.holders == {A, B}
    lead.beginning.stocked(A, stock(0), lead.epoch)
    assert "waiting for b" in lead.beginning.waiting_for()
    lead.beginning.stocked(B, stock(1), lead.epoch)
    lead.beginning.stocked(B, stock(1), lead.epoch)
    (opened,) = lead.opened
    assert isinstance(opened, Inheritance)
    assert opened.version == 7
    assert lead.origin.identity == IDENTITY
    assert lead.beginning.settled
    lead.beginning.ask_store()
    assert len(lead.opened) == 1


@pytest.mark.parametrize("store_first", [True, False])
def test_what_is_not_whole_has_the_job_begin_from_the_store(store_first: bool) -> None:
    lead = Lead()
    if store_first:
        lead.beginning.ask_store()
        assert not lead.beginning.settled
    lead.beginning.stocked(A, stock(0), lead.epoch)
    lead.beginning.stocked(B, Stock(), lead.epoch)
    if not store_first:
        assert not lead.beginning.settled
        assert lead.beginning.waiting_for() == "waiting for the store"
        lead.beginning.ask_store()
    assert lead.beginning.settled
    assert lead.opened == []
    assert lead.beginning.waiting_for() == "waiting for a trainer to be ready"
    assert lead.events == [
        (
            "rolled_back",
            "another shard leads now, and no shard has the parameters from element 10 on",
        )
    ]


def test_a_checkpoint_that_is_gone_fails_the_job_only_if_it_is_needed() -> None:
    needed, spare = Lead(checkpoint=5), Lead(checkpoint=5)
    for lead, more in ((needed, Stock()), (spare, stock(1))):
        lead.beginning.stocked(A, stock(0), lead.epoch)
        lead.beginning.stocked(B, more, lead.epoch)
        lead.beginning.ask_store()
    assert needed.failed == ["the checkpoint of iteration 5 is gone from the store"]
    assert spare.failed == []
    assert len(spare.opened) == 1


def test_an_identity_that_cannot_be_read_is_as_good_as_none() -> None:
    lead = Lead()
    odd = Stock(History(OPENED, "{", 20), OPENED, stock(0, 1).claims)
    lead.beginning.stocked(A, odd, lead.epoch)
    lead.beginning.stocked(B, Stock(), lead.epoch)
    assert lead.opened == []
    assert "cannot be read" in lead.events[0][1]


def test_without_anything_to_inherit_only_the_store_is_asked() -> None:
    lead = Lead(inherits=False)
    assert not lead.beginning.asks
    assert lead.beginning.holders == set()
    lead.beginning.ask_store()
    assert lead.beginning.settled
    assert lead.looks == 1


def test_a_shard_that_does_not_say_what_it_has_is_waited_for_only_so_long() -> None:
    lead = Lead()
    lead.beginning.ask_store()
    lead.beginning.stocked(A, stock(0), lead.epoch)
    lead.at += 10_000  # the machine stood still
    lead.beginning.tick()
    assert lead.beginning.asks
    for _ in range(int(ANSWER_S) - 2):
        lead.at += 1
        lead.beginning.tick()
    assert lead.beginning.asks
    for _ in range(2):
        lead.at += 1
        lead.beginning.tick()
    assert not lead.beginning.asks
    assert "b said nothing for 20 s" in lead.events[0][1]
    assert lead.beginning.settled
    lead.at += 1
    lead.beginning.tick()


def test_who_goes_back_to_a_checkpoint_waits_for_the_store_and_says_so() -> None:
    lead = Lead()
    lead.beginning.stocked(A, stock(0), lead.epoch)
    lead.beginning.stocked(B, stock(1), lead.epoch)
    lead.beginning.take([A], OPENED, None, "b lost")
    lead.goes_back = True
    lead.keeper.trouble = "the store does not answer"
    assert lead.beginning.waiting_for() == "b lost: waiting for a to say what is there"
    lead.beginning.stocked(A, stock(0), lead.epoch)
    assert lead.reopened
    assert lead.beginning.waiting_for() == "the store does not answer"
    lead.keeper.trouble = ""
    assert lead.beginning.waiting_for() == "going back to the newest checkpoint"
