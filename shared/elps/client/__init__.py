"""What programs outside the services use: submit jobs, ask and follow them, read job files and checkpoints."""
