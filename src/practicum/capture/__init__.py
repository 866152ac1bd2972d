"""One recorder for every model call: durable before the last byte of the answer."""
