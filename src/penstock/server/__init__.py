"""`penstock serve`: the broker for everyone on the network. Needs `penstock[server]`."""
