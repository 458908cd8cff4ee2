"""Who speaks when, with pyannote.audio's networks. Never imports Ray."""
