"""Machine-learning models: one protocol per task, several backends behind it."""
