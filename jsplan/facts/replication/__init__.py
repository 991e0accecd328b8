"""What the servers show of mirrors and sources, from both ends. What it means is left to `health`."""
