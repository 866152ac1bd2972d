"""Whether a candidate may go live, and the record of why. The pointer itself is moved by `policies`."""
