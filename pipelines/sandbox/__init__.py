"""Work on untrusted files in a confined child process."""
