"""The history of applies in state: `record` writes its entries, `read` shows them."""
