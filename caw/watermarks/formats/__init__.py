"""Number formats, native and of other systems, rebuilt on integers that every device agrees on."""
