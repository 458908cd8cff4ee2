"""What the service keeps: rows in PostgreSQL, bytes in an object store."""
