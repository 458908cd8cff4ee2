"""Machine-learning models: one protocol per task, several backends behind it."""

import os

# onnxruntime reports its use to its maker unless it is told not to before it is first imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
