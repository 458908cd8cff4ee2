"""Media in, scenes and transcripts out. Knows nothing of jobs, accounts or money."""
