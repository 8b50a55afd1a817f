"""Driver, scripted guest and store in memory, with faults on demand. They pass the suites of ``sandlot.testing``."""
