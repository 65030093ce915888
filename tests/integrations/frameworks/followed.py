"""What is asked of every framework with a pipeline: a module of tests imports these, and says in `PROGRAM`, `RUNS` and
`KINDS` what is run. Each case trains without pfo-fs and then with it, evaluates, and has a step that fails.
"""

from typing import Any

Facts = list[dict[str, Any]]


def test_every_instruction_comes_in_the_order_that_was_known_beforehand(facts: Facts) -> None:
    for seen in facts:
        own = [[name, stage] for stage, name, _ in seen["orders"][seen["pp"][0]]]
        assert seen["steps"] == [own] * seen["expected_steps"]  # what the optimizer was told
        assert seen.get("known_beforehand", own) == own  # in the shared directory, before the first step
        assert not seen["errors"]
        assert seen["orders"] == facts[0]["orders"]


def test_gradients_and_weights_are_those_of_a_run_without_pfo(facts: Facts) -> None:
    assert all(seen["same_weights"] for seen in facts)


def test_an_evaluation_is_silent(facts: Facts) -> None:
    assert all(seen.get("evaluation_silent", True) for seen in facts)


def test_an_error_in_a_step_ends_the_step(facts: Facts) -> None:
    assert not any(seen["left_in_step_by_an_error"] for seen in facts)


def test_nothing_is_left_on_the_frameworks_objects_after_close(facts: Facts) -> None:
    assert not any(seen["left_patched"] for seen in facts)
