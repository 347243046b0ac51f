"""All decisions of the scheduler, without input, output, clocks or randomness."""
