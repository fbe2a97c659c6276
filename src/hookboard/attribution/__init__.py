"""Class-activation maps: which places of a picture speak for a class."""
