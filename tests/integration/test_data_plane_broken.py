"""Frames that were changed on their way: each is read as some frame within bounds, or refused, and nothing is left."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from pathlib import Path

import pytest
from data_plane import descriptors, eventually, resident_bytes

from elps.contracts.errors import ProtocolError
from elps.psshard.link_frames import order_of_frame, report_of_frame
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import HEADER_BYTES, MAX_PART_BYTES

GOLDEN = sorted((Path(__file__).parents[1] / "contract" / "golden_frames").glob("*.hex"))
SEED = 9
GROWTH_BYTES = 60 * 1024 * 1024
"""One frame may have 16 MiB of JSON; none is kept."""


def broken(rng: random.Random, frames: list[bytes]) -> bytes:
    """Some frames, of which one is not what it was."""
    some = [bytearray(rng.choice(frames)) for _ in range(rng.randint(1, 3))]
    frame = rng.choice(some)
    match rng.randrange(6):
        case 0:
            for _ in range(rng.randint(1, 4)):
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        case 1:
            del frame[rng.randrange(len(frame)) :]
        case 2:
            at = rng.randrange(len(frame))
            frame[at:at] = rng.randbytes(rng.randint(1, 80))
        case 3:
            frame[:] = rng.randbytes(rng.randint(1, 300))
        case 4:  # a whole number of the header is another
            at = rng.randrange(0, HEADER_BYTES, 4)
            frame[at : at + 4] = rng.choice([b"\xff" * 4, b"\x00" * 4, b"\x00\x00\x00\x80"])
        case _:  # its JSON is none
            frame[HEADER_BYTES : HEADER_BYTES + 8] = b'{"a":[[['
    return b"".join(some)


def said(connection: Connection, counts: Counter[str]) -> str:
    """Read until the end; what the end was."""
    scratch = memoryview(bytearray(MAX_PART_BYTES))
    try:
        while True:
            header = connection.receive(idle_s=10)
            meta = connection.meta(header)
            connection.discard(header, scratch)
            counts["frames"] += 1
            for read in (order_of_frame, report_of_frame):
                with contextlib.suppress(ProtocolError):  # it is of another kind
                    read(header, meta)
    except ConnectionEnded:
        return "ended"
    except ProtocolError:
        return "refused"
    finally:
        connection.close()


@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.thorough)])
def test_every_broken_frame_is_read_or_refused(count: int) -> None:
    print(f"seed {SEED}")
    rng, counts = random.Random(SEED), Counter[str]()
    frames = [bytes.fromhex(path.read_text()) for path in GOLDEN]
    assert len(frames) > 40
    files, memory = descriptors(), resident_bytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(count):
            far = socket.create_connection(server.getsockname())
            near = server.accept()[0]
            far.sendall(broken(rng, frames))
            far.close()
            counts[said(Connection(near, "peer"), counts)] += 1
    assert counts["ended"] + counts["refused"] == count
    assert counts["refused"] > count / 4
    assert counts["frames"] > count / 4
    eventually(lambda: descriptors() <= files)
    assert resident_bytes() - memory < GROWTH_BYTES
