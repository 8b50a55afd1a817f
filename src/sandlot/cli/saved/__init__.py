"""Sandboxes that rest, are kept and come of one another, from the terminal."""
