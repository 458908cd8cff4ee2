"""Scenes, transcripts, tracks, chapters, summaries and speakers of jobs."""
