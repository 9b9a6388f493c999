"""What an INI file holds."""

_TRUE = {"1", "yes", "true", "on"}
_FALSE = {"0", "no", "false", "off"}


class MissingKey(KeyError):
    """A section or key that is not there."""

    def __str__(self):
        return self.args[0]


class Config:
    """Sections of keys and text values, in the order in which they came."""

    def __init__(self, data=None):
        self._sections = {name: dict(pairs) for name, pairs in (data or {}).items()}

    def sections(self):
        return list(self._sections)

    def items(self, section):
        return list(self._section(section).items())

    def _section(self, name):
        try:
            return self._sections[name]
        except KeyError:
            raise MissingKey("no section [%s]" % name) from None

    def add_section(self, name):
        self._sections.setdefault(name, {})

    def set(self, section, key, value):
        self._sections.setdefault(section, {})[key] = str(value)

    def get(self, section, key, default=None):
        pairs = self._section(section) if default is None else self._sections.get(section, {})
        if key in pairs:
            return pairs[key]
        if default is None:
            raise MissingKey("no %s in [%s]" % (key, section))
        return default

    def get_int(self, section, key, default=None):
        return int(self.get(section, key, default))

    def get_bool(self, section, key, default=None):
        value = self.get(section, key, default)
        if isinstance(value, bool):
            return value
        word = value.lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("not a yes or no: %r" % value)
        return word in _TRUE

    def to_dict(self):
        return {name: dict(pairs) for name, pairs in self._sections.items()}

    def __eq__(self, other):
        if not isinstance(other, Config):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __repr__(self):
        return "Config(%r)" % self.to_dict()
