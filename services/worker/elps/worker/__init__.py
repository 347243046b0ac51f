"""The worker service: an agent that offers slots, and the trainer processes that run in them."""
