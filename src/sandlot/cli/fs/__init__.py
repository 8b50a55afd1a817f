"""Files of sandboxes on the command line: ``sandlot cp`` and ``sandlot fs``."""
