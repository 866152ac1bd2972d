"""W22: text that changes for nothing is blanked for comparison by a rule with a name, and only that."""

from __future__ import annotations

import pytest

from practicum.dialects.volatile import RULES, is_no_prompt, volatile_in, without_volatile

LINE = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli;"


def test_w22_a_changing_line_is_the_same_for_comparison() -> None:
    texts = {without_volatile(f"{LINE.format(mark)}\nBe brief.") for mark in ("4e6", "c33", "")}
    assert texts == {"Be brief."}
    clocks = {without_volatile(f"Be brief. <current_datetime>{at}</current_datetime>") for at in ("1", "2")}
    assert len(clocks) == 1


@pytest.mark.parametrize("text", ["Be brief.\nx-anthropic-billing-header: a", "x-other-header: a", "at 12:00"])
def test_w22_what_no_rule_names_counts(text: str) -> None:
    assert without_volatile(text) == text and not is_no_prompt(text)


def test_w22_only_a_block_of_its_own_is_left_out_of_the_prompt() -> None:
    assert is_no_prompt(LINE.format("4e6"))
    assert not is_no_prompt(LINE.format("4e6") + "\nBe brief.")


def test_w22_records_tell_which_rules_they_meet() -> None:
    blocks = [{"type": "text", "text": LINE.format("4e6")}, {"type": "text", "text": "Be brief."}]
    clock = "<current_datetime>now</current_datetime>"
    assert volatile_in({"system": blocks, "messages": []}) == ["claude_code_billing_line"]
    assert volatile_in({"messages": [{"role": "system", "content": clock}]}) == ["copilot_clock"]
    assert volatile_in({"input": [{"role": "developer", "content": [{"type": "input_text", "text": clock}]}]}) == [
        "copilot_clock"
    ]
    assert volatile_in({"messages": [{"role": "user", "content": clock}], "input": "x"}) == []


def test_rules_have_names_and_evidence() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES) and all(rule.evidence for rule in RULES)
