"""Reading media: frames in sequence and at chosen times, audio, timestamps."""
