"""Where external audio belongs on a camera's timeline: by timecode, or by alignment."""
