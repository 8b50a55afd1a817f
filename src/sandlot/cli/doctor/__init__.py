"""The checks of ``sandlot doctor`` and their report."""
