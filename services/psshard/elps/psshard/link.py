"""The link between a job's leader and another of its shards.

The leader dials and keeps dialling. Whatever was lost with a broken link is said again when it is restored: the
assignment with all skips, the gate, open freezes, calls back; every one of them may be repeated without harm.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import structlog

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import ElpsError, ProtocolError
from elps.contracts.ids import ShardId
from elps.contracts.messages import Address
from elps.psshard.link_frames import (
    frame_of_order,
    frame_of_report,
    order_of_frame,
    report_of_frame,
)
from elps.psshard.orders import Order, Orders
from elps.psshard.reach import Reach
from elps.psshard.reports import Report
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Header, Kind
from elps.wire.handshake import Hello, dial

BEAT_S = 2.0
SILENT_S = 8.0
"""A link without a frame for this long is given up and dialled anew."""
FIRST_RETRY_S, LAST_RETRY_S = 0.05, 1.0

log = structlog.get_logger()


class RemotePeer:
    """The leader's side. What is sent while the link is down is dropped: `restored` says it all again."""

    def __init__(
        self,
        address: Address,
        hello: Hello,
        secret: str,
        reported: Callable[[ShardId, Report], None],
        restored: Callable[[ShardId], None],
        lost: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self.address = address
        self._hello, self._secret = hello, secret
        self._reported, self._restored = reported, restored
        self._lost, self._failed = lost, failed
        self._connection: Connection | None = None
        self._closed = threading.Event()
        self.reach = Reach(time.monotonic())
        self.trouble = "not connected yet"
        self._thread = threading.Thread(
            target=self._run, name=f"link-{hello.job}"[:15], daemon=True
        )

    def start(self) -> None:
        """Begin to dial."""
        self._thread.start()

    def _run(self) -> None:
        retry_s = FIRST_RETRY_S
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                connection = dial(
                    self.address.host,
                    self.address.port,
                    self._hello,
                    self._secret,
                    peer=self.address.shard,
                )
            except ElpsError as error:
                self.trouble = str(error)
            else:
                self._lead_over(connection)
                if time.monotonic() - began > LAST_RETRY_S:  # it was a link, not only a handshake
                    retry_s = FIRST_RETRY_S
            self._closed.wait(retry_s)
            retry_s = min(retry_s * 2, LAST_RETRY_S)

    def _lead_over(self, connection: Connection) -> None:
        """Use a link until it ends."""
        self._connection = connection
        self.reach.made(time.monotonic())
        if self._closed.is_set():  # meanwhile: `close` may not have seen this connection
            connection.close()
        try:
            self._restored(self.address.shard)
            self._read(connection)
        except (ElpsError, TimeoutError) as error:
            self.trouble = str(error)
        except Exception as error:
            # A fault of ours. Without this thread the job would wait for ever.
            log.exception("link_failed", job=self._hello.job, shard=self.address.shard)
            self._closed.set()
            name = type(error).__name__
            self._failed(f"the leader failed at {self.address.shard}: {name}: {error}")
        finally:
            connection.close()
            self._connection = None
            self.reach.lost(time.monotonic())
            if not self._closed.is_set():
                log.warning(
                    "link_lost",
                    job=self._hello.job,
                    shard=self.address.shard,
                    reason=self.trouble,
                )
                self._lost()

    def _read(self, connection: Connection) -> None:
        while True:
            header = connection.receive(idle_s=SILENT_S)
            meta = connection.meta(header)
            report = report_of_frame(header, meta)
            if report is not None:
                self._reported(self.address.shard, report)

    def beat(self) -> None:
        """Keep the link from falling silent; called every `BEAT_S`."""
        self._send(Header(Kind.BEAT), None)

    def carry_out(self, epoch: Epoch, order: Order) -> None:
        """Send the leader's word, if the link is up."""
        self._send(*frame_of_order(epoch, order))

    def close(self) -> None:
        """Stop dialling and end the link."""
        self._closed.set()
        if (connection := self._connection) is not None:
            connection.close()

    def _send(self, header: Header, meta: Any = None) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.send(header, meta)
        except ConnectionEnded as error:
            self.trouble = str(error)


def serve_link(connection: Connection, orders: Orders, term: Term) -> None:
    """The other shard's side: carry out what comes under `term`, send reports back, until the link ends."""

    def report(what: Report) -> None:
        with contextlib.suppress(ConnectionEnded):  # the leader dials again and asks
            connection.send(*frame_of_report(what))

    with orders.member.reporting_to(report):
        while True:
            header = connection.receive(idle_s=SILENT_S)
            order = order_of_frame(header, connection.meta(header))
            if order is None:
                worked = orders.member.worked()
                head = Header(Kind.BEAT), None
                connection.send(*(head if worked is None else frame_of_report(worked)))
            elif header.epoch.term != term:  # the handshake knows its number only
                raise ProtocolError(f"{connection.peer} leads under another term")
            else:
                orders.carry_out(header.epoch, order)
