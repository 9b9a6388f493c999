"""The HTTP face of the session graph: any agent, three protocols, token-exact trajectories."""
