"""A package of its own: some libraries install one of this name, which would be found in place of a plain folder."""
