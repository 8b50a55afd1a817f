"""The store: records in SQLite or PostgreSQL (SQLAlchemy Core, Alembic), and content of files in a folder (obstore)."""
