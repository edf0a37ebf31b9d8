"""The variables of MindCluster's documentation and of its operator, by the vectors' numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.compat.mindcluster.script import Variant, read_tolerance, recovery_environment, recovery_labels

WORDS = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
ON = {"PROCESS_RECOVER": "on", "ELASTIC_PROCESS_RECOVER_ENABLE": "1"}
IN_PLACE = {**ON, "ENABLE_RESTART_FAULT_PROCESS": "on"}
LABEL = {"process-recover-enable": "on"}
WATCHDOG = {"pytorch": {"HCCL_ASYNC_ERROR_HANDLING": "0"}, "mindspore": {"MS_ENABLE_THM": "{HCCL_WATCHDOG:0}"}}


def available(items: str) -> dict[str, str]:
    return {**ON, "HIGH_AVAILABILITY": items}


def tolerated(items: str) -> dict[str, str]:
    return {**ON, "MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_TFT": items}


ALL = ",".join(WORDS)
SEVERAL = available("dump,recover,retry")

#: framework, recover-strategy, pod-rescheduling, the variables, whether the label is set.
VECTORS = [
    pytest.param("pytorch", None, "", {}, False, id="E1"),
    pytest.param("pytorch", "recover", "", available("recover"), True, id="E3"),
    pytest.param("pytorch", "retry", "", available("retry"), True, id="E4"),
    pytest.param("pytorch", "recover-in-place", "", {**available("recover"), **IN_PLACE}, True, id="E5"),
    pytest.param(
        *("pytorch", "elastic-training", "", {"PROCESS_RECOVER": "on", "HIGH_AVAILABILITY": "elastic-training"}, True), id="E6"
    ),
    pytest.param("pytorch", "dump", "", available("dump"), True, id="E7"),
    pytest.param("pytorch", "retry,recover,dump", "", SEVERAL, True, id="E9"),
    pytest.param("pytorch", "dump,retry,recover", "", SEVERAL, True, id="E10"),
    pytest.param(
        *("pytorch", "retry,recover,recover-in-place,elastic-training,dump,exit", ""),
        *({**available("dump,elastic-training,recover,retry"), **IN_PLACE}, True),
        id="E12",
    ),
    pytest.param("mindspore", "recover", "", tolerated("{ARF:1}"), True, id="E16"),
    pytest.param("mindspore", "retry", "", tolerated("{HCCE:1,UCE:1}"), True, id="E17"),
    pytest.param("mindspore", "recover-in-place", "", {**tolerated("{ARF:1}"), **IN_PLACE}, True, id="E18"),
    pytest.param("mindspore", "dump", "", tolerated("{TTP:1}"), True, id="E19"),
    pytest.param("mindspore", None, "on", {"MS_ENABLE_TFT": "{RSC:1}"}, False, id="E21"),
    pytest.param("mindspore", None, "off", {}, False, id="E23: off"),
    pytest.param("mindspore", None, "On", {}, False, id="E23: On"),
    pytest.param("mindspore", None, "true", {}, False, id="E23: true"),
    pytest.param("tensorflow", "recover", "", {}, True, id="E26"),
]


@pytest.mark.parametrize(("framework", "strategy", "pod", "expected", "labelled"), VECTORS)
@pytest.mark.parametrize("variant", Variant)
def test_the_variables_of_a_strategy(
    framework: str, strategy: str | None, pod: str, expected: dict[str, str], labelled: bool, variant: Variant
) -> None:
    """Both tables agree, but for the watchdog that the operator switches off wherever there is a strategy."""
    extra = WATCHDOG.get(framework, {}) if strategy and variant is Variant.OPERATOR else {}

    found = recovery_environment(strategy, framework=framework, pod_rescheduling=pod, variant=variant)

    assert found == {**expected, **extra}
    assert recovery_labels(strategy, variant=variant) == (LABEL if labelled else {})


@pytest.mark.parametrize(
    ("strategy", "variant", "expected", "label"),
    [
        pytest.param("", Variant.DOCUMENTED, {}, {}, id="E2: documented"),
        pytest.param("", Variant.OPERATOR, {}, LABEL, id="E2: operator"),
        pytest.param("exit", Variant.DOCUMENTED, {}, LABEL, id="E8: documented"),
        pytest.param("exit", Variant.OPERATOR, {**available("recover"), **WATCHDOG["pytorch"]}, LABEL, id="E8: operator"),
    ],
)
def test_where_the_tables_differ(strategy: str, variant: Variant, expected: dict[str, str], label: dict[str, str]) -> None:
    """An empty annotation, and `exit`."""
    assert recovery_environment(strategy, variant=variant) == expected
    assert recovery_labels(strategy, variant=variant) == label


@pytest.mark.parametrize(
    ("strategy", "variant", "expected"),
    [
        pytest.param("recover", Variant.DOCUMENTED, {**tolerated("{ARF:1,RSC:1}")}, id="beside another item"),
        pytest.param("exit", Variant.DOCUMENTED, {"MS_ENABLE_TFT": "{RSC:1}"}, id="alone, where a word adds nothing"),
        pytest.param("elastic-training", Variant.DOCUMENTED, {"MS_ENABLE_TFT": "{RSC:1}"}, id="no elastic training there"),
        pytest.param(
            "elastic-training",
            Variant.OPERATOR,
            {"MINDIO_FOR_MINDSPORE": "1", "MS_ENABLE_TFT": "{RSC:1}", **WATCHDOG["mindspore"]},
            id="the operator writes its list all the same",
        ),
    ],
)
def test_rescheduling_of_pods_with_mindspore(strategy: str, variant: Variant, expected: dict[str, str]) -> None:
    """One item more in its list."""
    found = recovery_environment(strategy, framework="mindspore", pod_rescheduling="on", variant=variant)

    assert found == expected


@given(st.permutations(WORDS), st.integers(1, 6), st.sampled_from(["pytorch", "mindspore"]), st.sampled_from(Variant))
def test_several_words_are_the_union_of_each(words: list[str], count: int, framework: str, variant: Variant) -> None:
    """In any order, with blanks, and twice."""
    chosen = words[:count]

    def of(text: str) -> dict[str, str]:
        return recovery_environment(text, framework=framework, variant=variant)

    found, each = of(", ".join([*chosen, *chosen])), [of(word) for word in chosen]
    assert found.keys() == set(itertools.chain.from_iterable(each))
    for name, text in found.items():
        parts = frozenset().union(*(read_tolerance(part.get(name, "")) for part in each))
        assert read_tolerance(text) == parts


@pytest.mark.parametrize("text", ["'{ UCE:1, HCCE:1}'", "{HCCE:1,UCE:1}", '"{UCE:1,HCCE:1}"', "{ UCE:1 , HCCE:1 }"])
def test_both_spellings_of_the_list_are_read(text: str) -> None:
    """The documentation has quotes and blanks, the code has not."""
    assert read_tolerance(text) == {"UCE:1", "HCCE:1"}


def test_an_unknown_word_adds_nothing() -> None:
    """A job file is refused for it before; what comes from elsewhere may have one."""
    assert recovery_environment("restart") == {}
    assert recovery_environment("restart", variant=Variant.OPERATOR) == {"HIGH_AVAILABILITY": "", **WATCHDOG["pytorch"]}
