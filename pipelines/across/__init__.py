"""Over results: duplicates, comparison, review, redaction, chapters. Nothing here reads media."""
