"""The embedded engine: sampling and LoRA training with torch on this machine, no service needed.

`settings` and `threads` know no torch, so that configuration can be read and threads be set before torch is imported;
everything else here imports it.
"""
