"""What is kept of sandboxes to start others from: named snapshots, forks, and the trees that forks grow into."""
