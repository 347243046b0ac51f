"""The sample stream: passes over the data laid end to end, iterations as intervals of it, the order in a pass."""
