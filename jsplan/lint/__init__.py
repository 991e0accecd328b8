"""One rule per file, with stable codes; what a finding stops is left to the workflows."""
