"""What outlives a sandbox and the service: keys and quotas, the file store, the log of runs, events."""
