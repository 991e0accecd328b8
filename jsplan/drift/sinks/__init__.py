"""Where notices go: each kind of sink in its file; that each gets everything, whatever fails meanwhile, is `delivery`'s."""
