"""The way out of a sandbox: the package-index cache.

A sandbox has no network. What its pip, npm and apt ask for comes over a stream that its guest opens, is answered out of a store on the
host's disk, and what is not there is fetched from the indexes that the machine itself is configured to use. ``cache.py`` is where it begins.
"""
