"""Keeping a store: signing anew before it expires, checking all of it, removing what nothing needs."""
