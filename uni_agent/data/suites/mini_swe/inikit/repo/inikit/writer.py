"""Config to text."""

from inikit.quoting import needs_quotes, quote


def dumps(config):
    """INI text that `loads` reads back to an equal Config."""
    blocks = []
    for section in config.sections():
        lines = ["[%s]" % section]
        for key, value in config.items(section):
            lines.append("%s = %s" % (key, quote(value) if needs_quotes(value) else value))
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def dump(config, path):
    """Write a Config to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(dumps(config))
