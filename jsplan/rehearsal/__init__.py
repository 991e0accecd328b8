"""A plan tried on embedded servers that are configured as the real ones are: what they refuse, the real ones would refuse too."""
