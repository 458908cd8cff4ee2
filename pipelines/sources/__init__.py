"""Where footage comes from: files, URLs, cameras; probing what it is."""
