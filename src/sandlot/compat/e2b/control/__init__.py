"""E2B's control plane: sandboxes made, listed, prolonged, paused and ended; snapshots, forks, templates, logs and metrics of them."""
