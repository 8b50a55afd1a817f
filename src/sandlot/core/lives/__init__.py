"""The life of each sandbox: how it begins, rests, is taken over and ends."""
