"""What every request goes through: ids, errors, bodies, authentication."""
