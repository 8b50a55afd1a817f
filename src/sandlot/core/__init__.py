"""The service and all its rules: sandboxes and their lives, processes, cells, files. HTTP and concrete drivers are not its business."""
