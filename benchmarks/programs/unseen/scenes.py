"""Boxes, segments and graphs."""
