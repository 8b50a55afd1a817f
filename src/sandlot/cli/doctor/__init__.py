"""``sandlot doctor``: what it looks at, and how it tells."""
