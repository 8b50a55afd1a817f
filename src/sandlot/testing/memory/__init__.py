"""Driver, scripted guest and store in memory. They pass the suites of ``sandlot.testing``, and a test can make their operations fail."""
