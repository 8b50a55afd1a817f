"""Linux on the host: processes, control groups, disks, the pipes of a link, files that survive a crash, and checks of the machine."""
