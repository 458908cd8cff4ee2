"""Which pictures an operator does not permit, and how they are recognised."""
