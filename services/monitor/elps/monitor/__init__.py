"""The monitor: keeps what members, leaders and trainers report, and answers questions. Training never needs it."""
