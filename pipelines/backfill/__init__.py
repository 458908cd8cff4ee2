"""Thousands of files through the pipelines, without a service and without a database."""
