"""Which parts of a history are to be written to the store, so that it outlives the monitor.

A history is kept in *pieces*: a few neighbouring rows of one level of thinning (`Thinned`). New rows change the newest
piece, and rows that are thinned out change those in which they were and into which their neighbours sank; all others
lie in the store as they are. So a save costs what has changed since the last one, however long the job trains.

A save that was cut off leaves rows in two pieces, or rows that are void; `History.restore` puts that right. No row that
is among the newest is ever missing from the store between two saves: rows are written at the level to which they sink
before they are taken from the one above, and what is removed is removed last.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from elps.contracts.answers import Evaluation
from elps.contracts.errors import InvalidDocument
from elps.contracts.telemetry import IterationRow
from elps.monitor.core.history import History

PIECE_ROWS = 16
"""Rows of a piece of the newest level: with 200 workers half a MiB before it is compressed."""
MAX_PIECE_BYTES = 1024 * 1024
"""Compressed; a piece that is larger is thinned until it fits."""
MAX_UNPACKED_BYTES = 256 * 1024 * 1024


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring rows, or evaluations, of one level of a job's history."""

    seq: int
    """Of the job's record: an id that is used again is another job."""
    level: int
    rows: list[IterationRow] = []
    evaluations: list[Evaluation] = []


@dataclass(frozen=True)
class Save:
    """What is to be done to the store, in this order, and what lies there then."""

    write: dict[str, Piece]
    remove: list[str]
    pieces: dict[str, Piece]
    changes: int


class Kept:
    """What of one job's history lies in the store."""

    def __init__(self, seq: int, found: Mapping[str, Piece | None]) -> None:
        """`found` is what lies there, by the names of the fields; None: what nobody can use."""
        self._seq = seq
        self._pieces: dict[str, Piece | None] = dict(found)
        self._changes = -1  #: `History.changes` at the last save

    def differs(self, history: History) -> bool:
        """Whether a save would do anything; at no cost."""
        return history.changes != self._changes

    def save(self, history: History) -> Save:
        """What has changed since the last save. Until it is `saved`, nobody knows how much of it was carried out."""
        pieces = pieces_of(history, self._seq)
        sunk_first = sorted(pieces.items(), key=lambda item: -item[1].level)
        write = {name: piece for name, piece in sunk_first if self._pieces.get(name) != piece}
        remove = [name for name in self._pieces if name not in pieces]
        self._pieces |= dict.fromkeys([*write, *remove])
        return Save(write, remove, pieces, history.changes)

    def doubt(self) -> None:
        """The store may have lost any of it: the next save writes it all."""
        self._pieces, self._changes = dict.fromkeys(self._pieces), -1

    def saved(self, save: Save) -> None:
        """All of a save lies in the store."""
        self._pieces, self._changes = dict(save.pieces), save.changes


def pieces_of(history: History, seq: int) -> dict[str, Piece]:
    """The whole history as pieces, by their names."""
    found: dict[str, Piece] = {}
    for level, row in history.rows.placed():
        name = _name("r", level, row.iteration)
        found.setdefault(name, Piece(seq=seq, level=level)).rows.append(row)
    for level, evaluation in history.evaluations.placed():
        name = _name("e", level, evaluation.iteration)
        found.setdefault(name, Piece(seq=seq, level=level)).evaluations.append(evaluation)
    return found


def restored(
    pieces: Iterable[Piece],
) -> tuple[list[tuple[int, IterationRow]], list[tuple[int, Evaluation]]]:
    """Rows and evaluations of pieces with their levels, as `History.restore` takes them."""
    pieces = list(pieces)
    rows = [(piece.level, row) for piece in pieces for row in piece.rows]
    return rows, [(piece.level, e) for piece in pieces for e in piece.evaluations]


def pack(piece: Piece) -> bytes:
    """The bytes of a piece, `MAX_PIECE_BYTES` at most; of one row that is too large its workers go."""
    replace = msgspec.structs.replace
    while True:
        body = zlib.compress(msgspec.json.encode(piece), 1)
        if len(body) <= MAX_PIECE_BYTES:
            return body
        if len(piece.rows) + len(piece.evaluations) > 1:
            piece = replace(piece, rows=piece.rows[::2], evaluations=piece.evaluations[::2])
        else:
            rows = [replace(row, workers=[], waiting={}) for row in piece.rows]
            piece = replace(piece, rows=rows, evaluations=[])


def unpack(body: bytes) -> Piece:
    """Read a piece. Raises `InvalidDocument`."""
    try:
        text = zlib.decompressobj().decompress(body, MAX_UNPACKED_BYTES)
        return msgspec.json.decode(text, type=Piece)
    except (zlib.error, msgspec.DecodeError) as error:
        raise InvalidDocument("piece of a history", [str(error)]) from None


def _name(kind: str, level: int, iteration: int) -> str:
    """A level holds every 2^level-th iteration at most, so its pieces span so much more."""
    return f"{kind}{level}.{iteration // (PIECE_ROWS << level)}"
