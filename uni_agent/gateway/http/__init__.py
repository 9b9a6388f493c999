"""The gateway over HTTP, with aiohttp."""
