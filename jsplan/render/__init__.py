"""Views of the documents and events, for people and for scripts. What is in a document is left to its room."""
