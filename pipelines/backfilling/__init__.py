"""What ``pipelines.backfill`` is made of: thousands of items through the pipelines, no database."""
