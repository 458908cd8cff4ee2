"""A job's media and stills, under signed addresses."""
