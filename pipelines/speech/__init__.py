"""An audio track to its transcript: regions, words, speakers, captions."""
