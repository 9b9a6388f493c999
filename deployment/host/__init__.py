"""Sandboxes on this machine without any engine: bubblewrap, or plain processes where isolation is not wanted."""
