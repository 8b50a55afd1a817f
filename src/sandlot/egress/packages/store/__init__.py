"""Package files on disk: a store that several services share, its open files, its eviction, and the threads that access it."""
