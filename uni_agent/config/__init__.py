"""How any configuration is loaded: layers, overrides, error reports, JSON schema, environment."""

from uni_agent.config.base import Config, ConfigPath, PluginConfig, load_object, part_tag

__all__ = ["Config", "ConfigPath", "PluginConfig", "load_object", "part_tag"]
