"""A job's media to what the analysis stages need: probed, cut into segments, tracks extracted."""
