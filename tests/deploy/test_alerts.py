"""The alert rules: valid, each tested to fire, each with a section that says what to do."""

from __future__ import annotations

import re

from tests.docs.documents import ROOT, anchors
from tests.programs import output_of, program

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS = ROOT / "tests" / "deploy" / "alerts_test.yml"
NAMES = re.findall(r"- alert: (\w+)", RULES.read_text())


def test_the_rules_are_valid() -> None:
    output_of(program("promtool", "prometheus"), "check", "rules", RULES)


def test_each_alert_fires_where_it_should_and_nowhere_else() -> None:
    output_of(program("promtool", "prometheus"), "test", "rules", RULE_TESTS)
    fired = re.findall(r"- alertname: (\w+)\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels", RULE_TESTS.read_text())
    assert set(fired) == set(NAMES)


def test_each_alert_says_what_to_do() -> None:
    assert len(NAMES) == len(set(NAMES)) > 10
    sections = anchors(ROOT / "docs" / "how-to" / "operations.md")
    assert {name.lower() for name in NAMES} <= sections
    runbooks = re.findall(r"runbook: docs/how-to/operations.md#(\w+)", RULES.read_text())
    assert runbooks == [name.lower() for name in NAMES]
    said = {section for section in sections if section.startswith("ringline")}
    assert said == set(runbooks), "no section without its alert"
