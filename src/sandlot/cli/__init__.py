"""The command line ``sandlot``. Commands import the SDK when they run, so that ``--help`` and shell completion start quickly."""
