"""Ranges of versions."""

import re

from verspan.bounds import bounds_of
from verspan.version import Version


class Range:
    """Alternatives, each a list of bounds that must all hold."""

    def __init__(self, text):
        self.text = text.strip()
        self.alternatives = [_alternative(part) for part in self.text.split("||")]

    def allows(self, version, prereleases=False):
        """Whether a version (or its text) lies in the range.

        A pre-release only does when a bound names a pre-release of the same three numbers, or with `prereleases`.
        """
        if isinstance(version, str):
            version = Version(version)
        return any(_allows(bounds, version, prereleases) for bounds in self.alternatives)

    def __contains__(self, version):
        return self.allows(version)

    def __repr__(self):
        return "Range(%r)" % self.text


def _alternative(text):
    # White space between an operator and its version does not separate.
    terms = re.sub(r"([<>=~^])\s+", r"\1", text.strip()).split()
    return [bound for term in terms for bound in bounds_of(term)]


def _allows(bounds, version, prereleases):
    if not all(bound.holds(version) for bound in bounds):
        return False
    if not version.pre or prereleases:
        return True
    return any(bound.version.pre and bound.version.release == version.release for bound in bounds)
