"""One framework-neutral trajectory and its converters. See docs/trajectories.md."""
