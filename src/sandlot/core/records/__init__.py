"""Records that outlive a sandbox or the service: sandboxes, events, the execution log, usage and metrics."""
