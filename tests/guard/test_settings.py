"""Which of the three places that may name the guard's mode decides."""

import pytest

from guard.errors import GuardUsageError
from guard.settings import ENVIRONMENT_VARIABLE, Mode, chosen_mode


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)


def test_the_guard_raises_where_nobody_chose():
    assert chosen_mode() is Mode.RAISE


def test_code_goes_before_configuration_and_configuration_before_environment(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "count")
    assert chosen_mode() is Mode.COUNT
    assert chosen_mode(configuration={}) is Mode.COUNT
    assert chosen_mode(configuration={"mode": "strict"}) is Mode.STRICT
    assert chosen_mode("off", {"mode": "strict"}) is Mode.OFF


def test_an_empty_variable_chooses_nothing(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert chosen_mode() is Mode.RAISE


@pytest.mark.parametrize("name", ["on", "RAISE", 1, []])
def test_a_mode_that_does_not_exist_is_refused_by_its_source(name):
    with pytest.raises(
        GuardUsageError, match=r"the configuration's mode is .*choose one of off, count, raise, strict"
    ):
        chosen_mode(configuration={"mode": name})


def test_a_wrong_variable_is_named(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "loud")
    with pytest.raises(GuardUsageError, match="ROWBOUND_MODE is 'loud'"):
        chosen_mode()


@pytest.mark.parametrize("configuration", [[], 5, "x", {"Mode": "off"}, {"other": 1}])
def test_a_configuration_of_something_else_is_refused(configuration):
    with pytest.raises(GuardUsageError, match="it may hold `mode` alone"):
        chosen_mode(configuration=configuration)
