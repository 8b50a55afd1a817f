"""What a service keeps: its file store, what happened, and what ran."""
