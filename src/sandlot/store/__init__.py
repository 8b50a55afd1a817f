"""What survives a restart: rows in SQLite or PostgreSQL (SQLAlchemy Core, Alembic), bytes of files in a folder (obstore)."""
