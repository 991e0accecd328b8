"""The documents of the contract as typed data, which every view and the executor read."""
