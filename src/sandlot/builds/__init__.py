"""Builds of templates: Dockerfiles, and images of root file systems made from the layers of images.

The package works in sandboxes, through the services of a node. Nothing that a layer or a Dockerfile contains runs on the host or is unpacked there.
"""
