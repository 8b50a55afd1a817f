"""Routes of what outlasts a moment: sandboxes that rest, snapshots, forks."""
