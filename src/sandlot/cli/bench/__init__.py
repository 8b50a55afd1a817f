"""The benchmark of ``sandlot bench``."""
