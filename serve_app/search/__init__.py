"""Search over everything that an account has analysed."""
