"""Edited programmes with known cut lists: shots, transitions, distractors, encoding."""
