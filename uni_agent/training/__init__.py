"""Reinforcement learning with verl: the only place that imports it, and only where it is used."""
