"""Which bindings a routing key satisfies, as AMQP 0-9-1 has it."""

from __future__ import annotations

from elps.messaging.port import ExchangeKind


def routes(kind: ExchangeKind, binding_key: str, routing_key: str) -> bool:
    """Whether an exchange of this kind sends a message along a binding."""
    if kind == "fanout":
        return True
    if kind == "direct":
        return binding_key == routing_key
    return topic_matches(binding_key, routing_key)


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a key matches a topic pattern: ``*`` is exactly one word, ``#`` any number of them, none included."""
    words = key.split(".") if key else []
    reached = {0}  # positions in `words` up to which the pattern so far can match
    for part in pattern.split(".") if pattern else []:
        if part == "#":
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(words) and part in ("*", words[at])}
        if not reached:
            return False
    return len(words) in reached
