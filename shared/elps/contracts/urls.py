"""Addresses with passwords in them, and how they are shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit


def masked(url: str) -> str:
    """A URL fit to be printed: its password replaced, its query (which may hold keys) left out."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    return urlunsplit(
        (parts.scheme, f"{name}{colon}{'***' if colon else ''}{at}{host}", parts.path, "", "")
    )
