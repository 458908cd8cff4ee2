"""Backends that load published checkpoints through transformers. Never import Ray."""
