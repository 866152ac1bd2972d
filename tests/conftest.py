"""How generated examples run everywhere: no example has a deadline, since a busy machine is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("practicum", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("practicum")
