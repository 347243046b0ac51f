"""Faults that a `MemoryBroker` can play: messages lost, doubled, and late enough to overtake each other."""

from __future__ import annotations

import random
from collections.abc import Collection


class Faults:
    """Chances, each from 0 to 1, drawn from one seed: the same sequence of messages meets the same faults."""

    def __init__(
        self,
        seed: int,
        *,
        drop: float = 0.0,
        double: float = 0.0,
        delay: float = 0.0,
        delay_s: float = 0.05,
        exchanges: Collection[str] | None = None,
    ) -> None:
        """`delay` is the chance to be late by up to `delay_s`; `exchanges` limits all of it to those, else all."""
        self.seed = seed
        self.drop, self.double, self.delay, self.delay_s = drop, double, delay, delay_s
        self.exchanges = None if exchanges is None else frozenset(exchanges)
        self.dropped = self.doubled = self.delayed = 0
        self._random = random.Random(seed)

    def copies(self, exchange: str) -> list[float]:
        """For a message on its way to one queue: the delay in seconds of each copy that arrives."""
        if self.exchanges is not None and exchange not in self.exchanges:
            return [0.0]
        if self._random.random() < self.drop:
            self.dropped += 1
            return []
        count = 1
        if self._random.random() < self.double:
            self.doubled += 1
            count = 2
        return [self._lateness() for _ in range(count)]

    def _lateness(self) -> float:
        if self._random.random() >= self.delay:
            return 0.0
        self.delayed += 1
        return self._random.random() * self.delay_s
