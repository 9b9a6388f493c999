"""How any configuration is loaded: layers, overrides, error reports, JSON schema, environment.

The base classes are here; `load`, `merge`, `dump`, `schema` and `settings` are imported from their own modules, so
that declaring a configuration costs no YAML reader.
"""

from uni_agent.config.base import Config, ConfigPath, PluginConfig, load_object, part_tag
from uni_agent.config.problems import ConfigReport, Problem
from uni_agent.config.secrets import secret

__all__ = [
    "Config",
    "ConfigPath",
    "ConfigReport",
    "PluginConfig",
    "Problem",
    "load_object",
    "part_tag",
    "secret",
]
