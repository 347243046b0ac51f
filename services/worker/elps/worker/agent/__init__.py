"""The shell of the worker agent: the zygote's other end, the trainers' output, the beat."""
