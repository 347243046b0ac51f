"""The zygote: a single-threaded process that has imported everything a trainer needs, and forks trainers.

It has no event loop and runs no user code. The agent talks to it over one socket (`protocol`); when that socket closes,
the zygote ends all its children and itself.
"""
