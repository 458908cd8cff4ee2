"""Engines that need no weights beyond what their packages bundle."""
