"""What an operator sees: metrics, logs, and whether the service is alive and ready."""
