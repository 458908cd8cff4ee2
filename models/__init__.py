"""Machine-learning models: one protocol per task, several backends behind it."""

import os

# onnxruntime sends usage telemetry unless this is set before its first import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
# PyTorch reads it once: freed memory of one shape serves another, beside neighbours on a GPU.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
