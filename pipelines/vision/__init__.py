"""A video's segments to its scenes: features, cuts, stills, descriptions."""
