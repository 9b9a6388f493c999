"""Semantic versions and ranges."""

from verspan.ranges import Range
from verspan.select import best, sort_versions
from verspan.version import Version, VersionError

__all__ = ["Range", "Version", "VersionError", "best", "sort_versions"]
