"""The interactive session of ``sandlot repl``."""
