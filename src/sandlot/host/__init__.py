"""Linux on the host: processes, control groups, disks, the pipes to a guest, files that survive a crash, and checks of the machine."""
