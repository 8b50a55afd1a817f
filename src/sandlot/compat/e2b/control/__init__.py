"""E2B's control plane: sandboxes, snapshots, forks, templates, metrics and logs."""
