"""In-memory driver, scripted guest and store, whose operations a test can make fail. They pass the suites of ``sandlot.testing``."""
