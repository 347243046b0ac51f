"""Where a job's samples come from: the sources, the split into training and test part, and what
fingerprints them.
"""
