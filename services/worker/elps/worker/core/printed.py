"""What one trainer prints, cut into lines and kept within bounds; time is an argument.

A trainer may print without end. What is above the rate is counted and left out, but the end of each stream is always
kept, since the last lines before a death say why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Stream = Literal["stdout", "stderr"]

LINES_PER_S = 200.0
BYTES_PER_S = 128.0 * 1024
BURST_S = 8.0
"""A quiet trainer may print what it is allowed in this time at once."""
MAX_LINE_BYTES = 4096
"""Longer lines are cut."""
TAIL_BYTES = 16 * 1024
MAX_TAIL_LINE = 500


@dataclass
class _Cut:
    """One stream."""

    #: The beginning of a line whose end has not come; at most `MAX_LINE_BYTES` + 1 bytes.
    partial: bytes = b""
    #: Whether the rest of the current line is to be left out.
    skipping: bool = False
    #: The last `TAIL_BYTES` of all that came.
    tail: bytes = b""
    #: Whether more came than the tail holds.
    cut: bool = False


class Printed:
    """Lines of both streams in the order in which they came in."""

    def __init__(self, now: float) -> None:
        """Begin with a full allowance."""
        self._streams: dict[Stream, _Cut] = {"stdout": _Cut(), "stderr": _Cut()}
        self._lines = LINES_PER_S * BURST_S
        self._bytes = BYTES_PER_S * BURST_S
        self._refilled = now
        #: Lines not yet taken; bounded by the allowance between two calls of `take`.
        self._ready: list[str] = []
        #: Bytes left out since the last `take`.
        self._omitted = 0

    def feed(self, stream: Stream, chunk: bytes, now: float) -> None:
        """Take what was read from a stream."""
        cut = self._streams[stream]
        cut.cut |= len(cut.tail) + len(chunk) > TAIL_BYTES
        cut.tail = (
            (cut.tail + chunk)[-TAIL_BYTES:] if len(chunk) < TAIL_BYTES else chunk[-TAIL_BYTES:]
        )
        self._refill(now)
        room = int(self._bytes) if self._lines >= 1 else 0
        accepted = chunk[:room]
        if cut.skipping and accepted:
            end = _line_end(accepted)
            self._omitted += end if end else len(accepted)
            cut.skipping, accepted = not end, accepted[end:] if end else b""
        self._accept(cut, accepted)
        if len(chunk) > room:
            self._omit(cut, len(chunk) - room)

    def end(self, stream: Stream) -> None:
        """The stream is at its end: an unfinished line is one, too."""
        cut = self._streams[stream]
        if cut.partial and not cut.skipping:
            self._ready.append(_text(cut.partial.rstrip(b"\r")))
        cut.partial = b""

    def say(self, line: str) -> None:
        """Add a line of our own."""
        self._ready.append(line)

    def take(self) -> list[str]:
        """The lines since the last call, with a word about what was left out."""
        lines, self._ready = self._ready, []
        if self._omitted:
            lines.append(
                f"[elps: {self._omitted} bytes left out; "
                f"at most {LINES_PER_S:g} lines and {BYTES_PER_S:g} bytes a second are kept]"
            )
            self._omitted = 0
        return lines

    def last_lines(self, stream: Stream, count: int) -> Sequence[str]:
        """The last lines of a stream, whatever was left out above."""
        cut = self._streams[stream]
        lines = cut.tail.splitlines()
        if cut.cut and len(lines) > 1:
            lines = lines[1:]  # its beginning is lost
        return [_text(line, MAX_TAIL_LINE) for line in lines[-count:]]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._refilled)
        self._refilled = now
        self._lines = min(self._lines + passed * LINES_PER_S, LINES_PER_S * BURST_S)
        self._bytes = min(self._bytes + passed * BYTES_PER_S, BYTES_PER_S * BURST_S)

    def _accept(self, cut: _Cut, data: bytes) -> None:
        self._bytes -= len(data)
        pieces = (cut.partial + data).splitlines(keepends=True)
        cut.partial = b""
        for number, piece in enumerate(pieces):
            # A carriage return at the very end may be the first half of a line end.
            if not piece.endswith(b"\n") and number == len(pieces) - 1:
                cut.partial = piece[: MAX_LINE_BYTES + 1]
                return
            if self._lines < 1:
                rest = sum(map(len, pieces[number:]))
                cut.skipping = not pieces[-1].endswith((b"\n", b"\r"))
                self._omitted += rest
                return
            self._lines -= 1
            self._ready.append(_text(piece.rstrip(b"\r\n")))

    def _omit(self, cut: _Cut, count: int) -> None:
        self._omitted += count + len(cut.partial)
        cut.partial = b""
        cut.skipping = True


def _line_end(data: bytes) -> int:
    """Length of the first line with its end, 0 if it has none."""
    return data.find(b"\n") + 1


def _text(line: bytes, limit: int = MAX_LINE_BYTES) -> str:
    shown = line[:limit].decode(errors="replace")
    return shown if len(line) <= limit else shown + "…"
