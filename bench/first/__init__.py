"""``gradientflow bench first``."""
