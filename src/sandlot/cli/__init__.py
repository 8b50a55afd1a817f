"""The terminal: ``sandlot``. Each command imports what it needs when it runs, so that the help comes at once."""
