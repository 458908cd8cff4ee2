"""Transcripts as captions: SubRip, WebVTT, plain text."""
