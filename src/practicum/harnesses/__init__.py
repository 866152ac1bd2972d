"""Black-box agents run against the model endpoint: adapters, and the service that runs groups of rollouts."""
