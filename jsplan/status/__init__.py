"""What `status` shows: live domains, streams, consumers and flows as one document."""
