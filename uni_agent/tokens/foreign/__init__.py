"""Renderers that other packages wrote, behind the `Renderer` protocol."""
