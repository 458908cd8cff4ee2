"""``vas``: the command line, a file a group of commands."""
