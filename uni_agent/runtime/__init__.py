"""Carrying out rollouts: limits, retries, resume, cancellation, progress."""
