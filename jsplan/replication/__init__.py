"""Checks over open connections whether mirrors and sources follow their origins."""
