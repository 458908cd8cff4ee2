"""Media to what the analysis stages need: probed, cut into segments, tracks extracted."""
