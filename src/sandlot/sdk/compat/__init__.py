"""Modules that stand for a vendor's client where the vendor publishes none: the names and calls of its documentation, on Sandlot's door for it."""
