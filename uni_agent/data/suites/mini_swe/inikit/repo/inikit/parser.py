"""Text to Config."""

from inikit.config import Config
from inikit.lexer import IniError, tokens


def loads(text):
    """The Config of INI text. Raises IniError that names the line."""
    config = Config()
    section = key = None
    for kind, payload, line in tokens(text.replace("\r\n", "\n")):
        if kind == "section":
            section, key = payload, None
            config.add_section(section)
        elif kind == "pair":
            if section is None:
                raise IniError("a key before the first section", line)
            key, value = payload
            config.set(section, key, value)
        elif key is None:
            raise IniError("nothing to continue", line)
        else:
            config.set(section, key, "%s\n%s" % (config.get(section, key), payload))
    return config


def load(path):
    """The Config of a file."""
    with open(path, encoding="utf-8") as file:
        return loads(file.read())
