"""Execution of relocations: a mirror is filled, compared, promoted and activated."""
