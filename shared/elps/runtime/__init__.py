"""What every service process shares: settings, logs, its start and its orderly end."""
