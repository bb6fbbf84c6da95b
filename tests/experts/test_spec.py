import pytest

from gradejax.experts.spec import DEFAULT_SYSTEM_PROMPT, ExpertSpec


@pytest.mark.parametrize(("changes", "said"), [
    ({"name": " "}, "name must be a non-empty string"),
    ({"model": ""}, "model must be a folder"),
    ({"provider": "loacl"}, r"unknown provider 'loacl'; choose from \['local'"),
    ({"dtype": "float8"}, "unknown dtype 'float8'; choose from .*float32"),
    ({"pooling": "max"}, "unknown pooling 'max'; choose from .*mean"),
    ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, got 0"),
    ({"max_new_tokens": 8.0}, "max_new_tokens must be an integer"),
    ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
    ({"seed": True}, "seed must be an integer"),
    ({"sampling": 0.7}, "sampling must be a Sampling, got float"),
    ({"manager": 3}, "manager must be a string or None"),
])
def test_bad_fields_are_errors_that_name_them(changes, said):
    with pytest.raises(ValueError, match=said):
        ExpertSpec(**({"name": "A1", "model": "m"} | changes))


def test_one_folder_spelled_two_ways_is_one_model(tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    a, b = ExpertSpec(name="A1", model="m"), ExpertSpec(name="A2", model="./m/", seed=4)
    assert a.identity == b.identity


@pytest.mark.parametrize("other", [{"revision": "v2"}, {"dtype": "bfloat16"}, {"model": "n"}])
def test_what_makes_another_model(other):
    a = {"name": "A1", "model": "m"}
    assert ExpertSpec(**a).identity != ExpertSpec(**(a | other)).identity


def test_system_prompt_replaces_removes_or_keeps():
    messages = [{"role": "system", "content": "task's"}, {"role": "user", "content": "q"}]
    ask = lambda prompt: ExpertSpec(  # noqa: E731
        name="A1", model="m", system_prompt=prompt).messages(messages)
    assert ask(None) == messages
    assert ask("") == messages[1:]
    assert ask(DEFAULT_SYSTEM_PROMPT)[0]["content"] == DEFAULT_SYSTEM_PROMPT
    assert [m["role"] for m in ask("mine")] == ["system", "user"]
    assert messages[0]["content"] == "task's"
