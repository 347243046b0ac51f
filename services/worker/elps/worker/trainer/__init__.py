"""The trainer: a process that computes gradients of one job. Blocking sockets, no event loop."""
