"""Rules left out."""
FAULTS = {}
