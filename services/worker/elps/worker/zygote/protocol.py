"""What agent and zygote say to each other, over one Unix socket of type SEQPACKET: one packet is one message.

Descriptors travel beside a message. A trainer is named by a `tag` that the agent draws; no message of one zygote ever
speaks of another trainer under the same tag. A trainer just forked sends its `Began` over the same socket, before it
closes it; packets are whole, so several writers do not mix.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence
from typing import TypeVar

import msgspec

MAX_PACKET_BYTES = 32 * 1024
MAX_DESCRIPTORS = 8


class _Packet(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages here."""


class ForkRequest(_Packet, frozen=True, kw_only=True, tag="fork"):
    """Fork a trainer. Descriptors: where its standard output and error go, and a file that holds its `StartTrainer`."""

    tag: int
    name: str
    """Shown by ``ps`` and ``top``."""


class SignalRequest(_Packet, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to a trainer; SIGKILL goes to its whole session. Ignored when it is gone."""

    tag: int
    signal: int


class Ready(_Packet, frozen=True, kw_only=True, tag="ready"):
    """Everything is imported."""

    seconds: float


class Failed(_Packet, frozen=True, kw_only=True, tag="failed"):
    """The zygote cannot do its work and ends."""

    reason: str


class Forked(_Packet, frozen=True, kw_only=True, tag="forked"):
    """The trainer's process exists. Descriptor: its pidfd, opened while the number could not be taken by another."""

    tag: int
    pid: int


class Began(_Packet, frozen=True, kw_only=True, tag="began"):
    """From the trainer itself: it is set up and calls the trainer's code now."""

    tag: int
    pid: int


class NotForked(_Packet, frozen=True, kw_only=True, tag="not_forked"):
    """There is no process for this trainer."""

    tag: int
    reason: str


class Ended(_Packet, frozen=True, kw_only=True, tag="ended"):
    """The trainer is gone, and with it all that was in its session."""

    tag: int
    status: int
    """As from ``waitpid``."""
    max_rss_bytes: int


ToZygote = ForkRequest | SignalRequest
FromZygote = Ready | Failed | Forked | Began | NotForked | Ended
P = TypeVar("P")

EXIT_CUT_OFF = 117
"""With this a trainer exits whose leader or shards are out of reach; no code that tasks are wont to exit with."""

to_zygote: msgspec.json.Decoder[ToZygote] = msgspec.json.Decoder(ToZygote)
from_zygote: msgspec.json.Decoder[FromZygote] = msgspec.json.Decoder(FromZygote)


def send(
    control: socket.socket, message: ToZygote | FromZygote, descriptors: Sequence[int] = ()
) -> None:
    """Send one message; raise `BlockingIOError` on a full non-blocking socket, `OSError` when the peer is gone."""
    ancillary = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    control.sendmsg([msgspec.json.encode(message)], ancillary, socket.MSG_NOSIGNAL)


def receive(control: socket.socket, decoder: msgspec.json.Decoder[P]) -> tuple[P, list[int]] | None:
    """Receive one message and its descriptors (close-on-exec); None when the peer has closed."""
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = control.recvmsg(MAX_PACKET_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    if not data:
        return None
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    return decoder.decode(data), list(descriptors)
