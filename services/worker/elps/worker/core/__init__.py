"""Decisions of the worker agent: no input or output, no clock, no event loop."""
