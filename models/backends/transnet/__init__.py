"""Shot boundaries by TransNetV2; needs torch, and weights from a local file."""
