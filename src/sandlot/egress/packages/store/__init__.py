"""The package store: downloaded files on disk, which several services may share, and their eviction when the disk space runs out."""
