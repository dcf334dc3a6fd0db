"""Number formats, native and of other systems, in integer arithmetic that every device agrees on."""
