"""Tensorlake's API for the inside of one sandbox: processes, files, terminals and tunnels."""
