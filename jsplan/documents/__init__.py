"""The documents of the contract as typed data: plan, apply, drift. Every view and the executor read these."""
