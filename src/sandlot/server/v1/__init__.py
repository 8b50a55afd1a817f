"""Native API, version 1. Each module has the schemas, the event table and the routes of one resource."""
