"""Service layer that all APIs use: lifecycle, executions, files, snapshots and pools of sandboxes. It contains no HTTP code and no driver."""
