"""One version."""

import functools
import re

_PATTERN = re.compile(
    r"^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?$"
)


class VersionError(ValueError):
    """Text that is no version or range."""


@functools.total_ordering
class Version:
    """`major.minor.patch`, with pre-release and build parts. Build parts play no role in comparisons."""

    __slots__ = ("build", "major", "minor", "patch", "pre")

    def __init__(self, text):
        match = _PATTERN.match(text.strip())
        if match is None:
            raise VersionError("not a version: %r" % text)
        self.major, self.minor, self.patch = (int(part) for part in match.group(1, 2, 3))
        self.pre = tuple(match.group(4).split(".")) if match.group(4) else ()
        self.build = match.group(5) or ""

    @classmethod
    def of(cls, major, minor=0, patch=0):
        return cls("%d.%d.%d" % (major, minor, patch))

    @property
    def release(self):
        return (self.major, self.minor, self.patch)

    def _key(self):
        # A version without a pre-release part comes after all that have one.
        return (self.release, not self.pre, [_identifier_key(part) for part in self.pre])

    def __eq__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self._key() == other._key()

    def __lt__(self, other):
        if not isinstance(other, Version):
            return NotImplemented
        return self._key() < other._key()

    def __hash__(self):
        return hash((self.release, self.pre))

    def __str__(self):
        text = "%d.%d.%d" % self.release
        if self.pre:
            text += "-" + ".".join(self.pre)
        return text + ("+" + self.build if self.build else "")

    def __repr__(self):
        return "Version(%r)" % str(self)


def _identifier_key(part):
    # Numbers compare as numbers and come before words.
    return (0, int(part), "") if part.isdigit() else (1, 0, part)
