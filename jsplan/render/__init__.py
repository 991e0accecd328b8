"""Views of the documents and events, for people and for scripts."""
