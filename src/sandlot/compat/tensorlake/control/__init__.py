"""Tensorlake's control plane: sandboxes, snapshots, pools and logs."""
