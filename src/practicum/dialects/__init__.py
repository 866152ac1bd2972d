"""Provider wire formats on one side, canonical requests and answers on the other. Pure: no I/O, no tokens."""
