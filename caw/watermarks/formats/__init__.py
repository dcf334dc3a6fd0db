"""Number formats of other systems: how they seed their lists, rebuilt on integers that every device agrees on."""

from caw.watermarks.formats.rules import FOREIGN, ForeignLists, SeedRule, find_rule

__all__ = ["FOREIGN", "ForeignLists", "SeedRule", "find_rule"]
