"""What the monitor knows, as plain objects: messages in, views out; time is an argument, memory is bounded."""
