"""Results as files: captions, timelines, clips."""
