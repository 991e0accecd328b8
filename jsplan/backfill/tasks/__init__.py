"""Copy tasks: staging streams, readers, writers, promotion and verification."""
