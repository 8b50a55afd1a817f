"""Linux on the host: processes and their identity, cgroups, disks, pipes to a guest, and what this machine can do."""
