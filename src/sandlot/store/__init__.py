"""The store: records in SQLite or PostgreSQL (SQLAlchemy Core, Alembic), and the content of stored files in a folder (obstore)."""
