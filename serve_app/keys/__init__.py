"""Dashboard endpoints: keys, portal, sessions."""
