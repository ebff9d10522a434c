"""The gateway: the model traffic of all lanes through one proxy, which holds the keys, counts and bounds."""
