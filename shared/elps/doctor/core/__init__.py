"""The judgement: readings in, findings out; no input or output."""
