"""What the scheduled drift job knows and does: findings as situations, when to look, who is told. The sequences are in `workflows`."""
