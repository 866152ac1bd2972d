"""A hang is silence while answers wait, not silence."""

from __future__ import annotations

import pytest

from practicum.errors import EngineError
from practicum.gateway.engine_watch import EngineWatch


def test_w17_a_hang_is_detected_and_named() -> None:
    now = [0.0]
    watch = EngineWatch(10.0, lambda: now[0])
    now[0] = 100.0
    assert not watch.health().stalled, "nobody waits"
    with watch.answer():
        watch.check()
        now[0] = 109.0
        watch.progress()
        now[0] = 118.0
        with watch.answer():
            watch.check()
            now[0] = 120.0
            with pytest.raises(EngineError) as caught:
                watch.check()
    assert caught.value.code == "engine_stalled" and caught.value.status == 503
    assert watch.health().waiting == 0
