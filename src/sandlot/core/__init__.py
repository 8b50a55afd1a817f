"""The service below all APIs: lifecycle, executions, files, snapshots and pools of sandboxes. It contains no HTTP and no concrete driver."""
