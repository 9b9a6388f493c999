"""TODO."""

if not __name__.startswith("uni_agent."):
    raise ImportError(f"import uni_agent.{__name__}")
