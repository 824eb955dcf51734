"""Ranks that die at random moments, and what those that are left make of it."""
