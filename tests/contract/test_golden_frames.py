"""Golden bytes of the data plane: frames as some version sent them can always be read, and are sent the same today.

`golden_frames/<KIND>[.n].hex` hold one frame each and are never changed. A new kind gets its file from
`ELPS_WRITE_GOLDEN=1 pytest tests/contract/test_golden_frames.py`.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import JobId, PartitionId, ShardId, WorkerId
from elps.psshard.assignment import Assignment
from elps.psshard.core import commands as do
from elps.psshard.core.inheriting import Claim, History, Stock
from elps.psshard.link_frames import (
    frame_of_order,
    frame_of_report,
    order_of_frame,
    report_of_frame,
)
from elps.psshard.orders import Order
from elps.psshard.reports import (
    Followed,
    Frozen,
    Missed,
    Progressed,
    Report,
    Stocked,
    Trouble,
    Unfollowed,
    Written,
)
from elps.psshard.wave import Wave
from elps.stream.interval import Interval
from elps.wire import handshake
from elps.wire.connection import Connection
from elps.wire.frames import HEADER_BYTES, Flag, Header, Kind, Status, unpack
from elps.wire.handshake import Hello, dial, welcome

FOLDER = Path(__file__).parent / "golden_frames"
WRITE = bool(os.environ.get("ELPS_WRITE_GOLDEN"))
EPOCH = Epoch(Term(3, 0x0123456789ABCD), 2)
LEASE = Interval(4096, 4160)
WORKER = WorkerId("digits-w1")

Frame = tuple[Header, Any, bytes]


def header(kind: Kind, **fields: Any) -> Header:
    return Header(kind, EPOCH, **fields)


HISTORY = History(Epoch(Term(3, 7), 2), "a1b2", 3000)
ORDERS: dict[str, Order] = {
    "ASSIGN": Assignment(
        partitions=[(0, 0, 1024), (2, 2048, 3000)],
        samples=1437,
        batch=64,
        granule=1,
        iterations=200,
        start=40,
        checkpoint="3.1-40",
        skips=[(128, 160)],
    ),
    "ASSIGN.2": Assignment(
        partitions=[(2, 2048, 3000)],
        samples=1437,
        batch=64,
        granule=1,
        iterations=200,
        start=64,
        checkpoint="3.1-40",
        carried=True,
        skips=[],
    ),
    "ASSIGN.3": Assignment(
        partitions=[(2, 2048, 3000)],
        samples=1437,
        batch=64,
        granule=1,
        iterations=200,
        start=64,
        checkpoint=None,
        inherited=True,
        history=HISTORY,
        skips=[],
    ),
    "GATE": do.AnnounceGate(64),
    "FREEZE": do.Freeze(LEASE, 5),
    "THAW": do.Thaw(LEASE),
    "GRANT": do.Grant(LEASE, "digits-w1: the gradient of 'w' (3 of 640 elements) is NaN"),
    "CALL_BACK": do.CallBack(WORKER, 17),
    "CHECKPOINT": do.WriteCheckpoint(64),
    "FOLLOW": Wave(
        number=4,
        copies=[(2, 2048, 3000, ShardId("shard-1"), ShardId("shard-2"))],
        addresses={ShardId("shard-2"): ("::1", 4712)},
    ),
    "FOLLOW.2": Wave(
        number=5,
        copies=[(2, 2048, 3000, ShardId("shard-1"), ShardId("shard-2"))],
        addresses={ShardId("shard-2"): ("::1", 4712)},
        standing=True,
    ),
    "UNFOLLOW": do.Unfollow(4),
    "UNFOLLOW.2": do.Unfollow(4, standing=True),
    "TAKE_STOCK": do.TakeStock(),
}
REPORTS: dict[str, Report] = {
    "PROGRESS": Progressed(EPOCH, 64),
    "FROZEN": Frozen(EPOCH, LEASE, 5, clean=True),
    "FROZEN.2": Frozen(EPOCH, LEASE, 5, clean=False),
    "WRITTEN": Written(EPOCH, 64, {PartitionId(2): (63, {"values": 0xCBF43926, "momentum": 1})}),
    "WRITTEN.2": Missed(EPOCH, 64),
    "TROUBLE": Trouble(EPOCH, "partition 2: the chunk is not what was written", damaged=True),
    "TROUBLE.2": Trouble(EPOCH, "a partition is named twice"),
    "TROUBLE.3": Trouble(EPOCH, "partition 2 is not here at version 64", lost=True),
    "FOLLOWED": Followed(EPOCH, 4, 2, 64),
    "FOLLOWED.2": Followed(EPOCH, 4, 1, -1),
    "UNFOLLOWED": Unfollowed(EPOCH, 4, "shard-2 could not be reached"),
    "STOCK": Stocked(EPOCH, Stock()),
    "STOCK.2": Stocked(
        EPOCH,
        Stock(HISTORY, EPOCH, (Claim(PartitionId(2), 2048, 3000, 65, 63),), (Interval(64, 66),)),
    ),
    "STOCK.3": Stocked(
        EPOCH,
        Stock(HISTORY, EPOCH, (Claim(PartitionId(2), 2048, 3000, 65, 63, oldest=65, copy=True),)),
    ),
    "STOCK.4": Stocked(
        EPOCH,
        Stock(
            HISTORY,
            EPOCH,
            (Claim(PartitionId(2), 2048, 3000, 65, 190, 65, applied=(Interval(4160, 4192),)),),
        ),
    ),
}
IDENTITY = {
    "samples": 1437,
    "test_samples": 360,
    "layout": {"dtype": "float32", "parameters": [["w", [64, 10]], ["b", [10]]]},
    "fingerprint": "f1",
    "code_hash": "c0de",
}
COMPUTED = {
    "iteration": 64,
    "lo": 4096,
    "hi": 4160,
    "loss": 1.5,
    "compute_s": 0.25,
    "pull_s": 0.125,
    "wait_s": 0.0625,
    "lease_s": 0.5,
}
MAP = {
    "shards": [
        {"id": "shard-1", "host": "127.0.0.1", "port": 4711, "partitions": [[0, 0, 1024]]},
        {"id": "shard-2", "host": "::1", "port": 4712, "partitions": []},
    ]
}
PART = bytes(range(64))
FRAMES: dict[str, Frame] = {
    "READY": (Header(Kind.READY), IDENTITY, b""),
    "ASK": (header(Kind.ASK), COMPUTED, b""),
    "ASK.2": (header(Kind.ASK), None, b""),
    "PUSHED": (
        header(Kind.PUSHED, iteration=64, interval=LEASE),
        {"push_s": 0.25},
        b"",
    ),
    "PUSHED.2": (
        header(Kind.PUSHED, iteration=64, interval=LEASE),
        {"push_s": 0.25, "cpu_process": 0.5, "cpu_host": 1.5, "memory_bytes": 4096},
        b"",
    ),
    "NOTICED": (header(Kind.NOTICED), {"cpu_process": 0.5, "memory_bytes": 4096}, b""),
    "BAD": (header(Kind.BAD, iteration=64, interval=LEASE), {"what": "NaN"}, b""),
    "EVALUATED": (
        header(Kind.EVALUATED, iteration=64, interval=Interval(0, 360)),
        {"sums": {"accuracy": 350.0, "loss": None}},
        b"",
    ),
    "RETIRING": (header(Kind.RETIRING), None, b""),
    "LEAVING": (header(Kind.LEAVING), {"what": "its agent ends it"}, b""),
    "FAILED": (Header(Kind.FAILED), {"what": "Traceback …"}, b""),
    "INITIALISED": (header(Kind.INITIALISED), None, b""),
    "MAP": (header(Kind.MAP), MAP, b""),
    "INITIALISE": (header(Kind.INITIALISE), None, b""),
    "TRAIN": (header(Kind.TRAIN, iteration=64, interval=LEASE, ticket=17), None, b""),
    "EVALUATE": (
        header(Kind.EVALUATE, iteration=64, interval=Interval(0, 360), ticket=18),
        None,
        b"",
    ),
    "AHEAD": (
        header(Kind.AHEAD),
        {"shards": [{"id": "shard-2", "host": "::1", "port": 4712}]},
        b"",
    ),
    "STOP": (Header(Kind.STOP), {"reason": "all iterations are done"}, b""),
    "WAIT": (header(Kind.WAIT), None, b""),
    "WAIT.2": (header(Kind.WAIT), {"notice": True}, b""),
    "PUSH": (header(Kind.PUSH, partition=2, iteration=64, interval=LEASE), None, PART),
    "PUSH.2": (
        header(Kind.PUSH, flags=Flag.STAGED | Flag.LAST, iteration=64, interval=LEASE),
        None,
        PART,
    ),
    "EMPTY": (header(Kind.EMPTY, flags=Flag.LAST, iteration=64, interval=LEASE), None, b""),
    "COMMIT": (header(Kind.COMMIT, flags=Flag.LAST, iteration=64, interval=LEASE), None, b""),
    "ABORT": (header(Kind.ABORT, iteration=64, interval=LEASE), None, b""),
    "VALUES": (header(Kind.VALUES, flags=Flag.LAST, partition=2), None, PART),
    "ACK": (
        header(Kind.ACK, status=Status.REFUSED, iteration=64, interval=LEASE),
        None,
        b"",
    ),
    "PULL": (header(Kind.PULL, iteration=64, ticket=17), None, b""),
    "PULL.2": (header(Kind.PULL, flags=Flag.NEWEST, iteration=64, ticket=17), None, b""),
    "PART": (header(Kind.PART, partition=2, iteration=64, ticket=17), None, PART),
    "END": (header(Kind.END, status=Status.GONE, iteration=64, ticket=17), None, b""),
    "BEAT": (Header(Kind.BEAT), None, b""),
    "MAP.2": (header(Kind.MAP), {**MAP, "since": 1}, b""),
    "STATE": (
        header(Kind.STATE, partition=2, iteration=64, ticket=4),
        {"name": "values", "steps": 63},
        PART,
    ),
    "SUM": (
        header(Kind.SUM, partition=2, iteration=64, ticket=4),
        {"count": 64, "step": 64},
        PART,
    ),
    "SUM.2": (
        header(Kind.SUM, partition=2, iteration=65, ticket=4),
        {"count": 0, "step": 64},
        b"",
    ),
    **{name: (*frame_of_order(EPOCH, order), b"") for name, order in ORDERS.items()},
    **{name: (*frame_of_report(report), b"") for name, report in REPORTS.items()},
}


def golden(name: str) -> bytes:
    path = FOLDER / f"{name}.hex"
    if not path.exists() and WRITE:
        lines = sent(*FRAMES[name]).hex("\n", -32)
        path.write_text(lines + "\n")
    assert path.exists(), f"{name} has no golden bytes; add them with ELPS_WRITE_GOLDEN=1"
    return bytes.fromhex(path.read_text())


def pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def sent(head: Header, meta: Any, body: bytes) -> bytes:
    """What a connection writes for a frame."""
    near, far = pair()
    with far:
        connection = Connection(near, "far")
        connection.send(head, meta, body or None)
        connection.close()
        return b"".join(iter(lambda: far.recv(65536), b""))


def received(data: bytes) -> tuple[Header, dict[str, Any], bytes]:
    """What a connection reads from bytes that come one by one."""
    near, far = pair()
    connection = Connection(near, "far")
    sender = threading.Thread(
        target=lambda: [far.send(data[at : at + 1]) for at in range(len(data))]
    )
    sender.start()
    try:
        head = connection.receive(idle_s=10)
        meta, body = connection.meta(head), bytearray(head.body_bytes)
        connection.body(head, memoryview(body))
        return head, meta, bytes(body)
    finally:
        sender.join(10)
        connection.close()
        far.close()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_sent_as_its_golden_bytes(name: str) -> None:
    assert sent(*FRAMES[name]) == golden(name)


@pytest.mark.parametrize("name", FRAMES)
def test_golden_bytes_are_read_as_the_frame(name: str) -> None:
    head, meta, body = FRAMES[name]
    read, read_meta, read_body = received(golden(name))
    sizes = (len(orjson.dumps(meta)) if meta is not None else 0, len(body))
    assert (read.meta_bytes, read.body_bytes) == sizes
    assert msgspec.structs.replace(read, meta_bytes=0, body_bytes=0) == head
    assert read_meta == orjson.loads(orjson.dumps(meta or {}))
    assert read_body == body


def test_every_kind_has_golden_bytes_and_no_file_is_forgotten() -> None:
    assert {name.split(".")[0] for name in FRAMES} == {kind.name for kind in Kind}
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(FRAMES)
    for name in FRAMES:
        assert unpack(golden(name)[:HEADER_BYTES]).kind.name == name.split(".")[0]


@pytest.mark.parametrize("name", ORDERS)
def test_golden_orders_say_what_the_leader_said(name: str) -> None:
    head, meta, _ = received(golden(name))
    assert head.epoch == EPOCH
    assert order_of_frame(head, meta) == ORDERS[name]


@pytest.mark.parametrize("name", REPORTS)
def test_golden_reports_say_what_the_shard_said(name: str) -> None:
    head, meta, _ = received(golden(name))
    assert report_of_frame(head, meta) == REPORTS[name]


SECRET = "correct horse battery staple"
HELLO = Hello(job=JobId("digits"), purpose="push", sender="digits-w1", term=3)
DRAWN = bytes(range(16))
"""What both sides draw in these two tests."""
SERVER_SAYS = [
    "656c70730100000102030405060708090a0b0c0d0e0f",  # "elps", version 1, its 16 bytes
    "20000dd173134594022f876c4d3f4acc8bce037fd619dd5de0064ff9b436e9560153",
]
CLIENT_SAYS = (
    "656c70730100000102030405060708090a0b0c0d0e0f"
    "3f007b226a6f62223a22646967697473222c22707572706f7365223a2270757368"
    "222c2273656e646572223a226469676974732d7731222c227465726d223a337d"
    "d672107d8f66db9b579d5cac9d5447182ee8af775ef118e9fe443bcbf4898fd3"
)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake.os, "urandom", lambda size: DRAWN[:size])


@pytest.mark.usefixtures("drawn")
def test_a_shard_shakes_hands_as_its_golden_bytes_say() -> None:
    near, far = pair()
    far.sendall(bytes.fromhex(CLIENT_SAYS))
    connection, hello = welcome(near, lambda _: SECRET, lambda _: None)
    connection.close()
    with far:
        assert b"".join(iter(lambda: far.recv(4096), b"")).hex() == "".join(SERVER_SAYS)
    assert hello == HELLO


@pytest.mark.usefixtures("drawn")
def test_a_trainer_shakes_hands_as_its_golden_bytes_say() -> None:
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as sock:
                sock.sendall(bytes.fromhex("".join(SERVER_SAYS)))
                while piece := sock.recv(4096):
                    heard.extend(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        dial("127.0.0.1", server.getsockname()[1], HELLO, SECRET, peer="shard-1").close()
        thread.join(10)
    assert heard.hex() == CLIENT_SAYS
    assert SECRET.encode() not in heard
