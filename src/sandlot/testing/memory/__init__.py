"""In-memory driver, scripted guest and store: fast stand-ins that pass the conformance suites of the real ones."""
