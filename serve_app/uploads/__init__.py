"""Media in: signed upload URLs and the streaming PUT."""
