import pytest

from gradejax.experts.endpoint import Endpoint, endpoint_of
from gradejax.experts.registry import ExpertRegistry
from gradejax.experts.spec import ExpertSpec
from gradejax.systems.description import pool_entries, registry_of

URL = "http://127.0.0.1:8000/v1"
SECRET = "sk-very-secret-0123456789"


def test_one_address_is_one_text():
    assert Endpoint(base_url=URL + "/") == Endpoint(base_url=URL)


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host/v1", "http:///v1", 5])
def test_bad_addresses(url):
    with pytest.raises(ValueError, match="base_url must be an http or https address"):
        Endpoint(base_url=url)


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:abc/v1", "http://127.0.0.1:99999/v1", "http://127.0.0.1:65536", "http://h:/v1",
    "http://h:0/v1", "http://h:-1/v1", "http://h:+8/v1", "http://h:\u0663/v1", "http://h:8:9/v1",
    "http://[::1]:/v1", "http://[::1]:x/v1", "http://[::1/v1", "http://h:80 /v1", "http://h o/v1",
    "http://h/v1\n", "http://h\t:8/v1", "http://h\x00/v1", "http://a..b/v1", "http://.h/v1",
    f"http://{'a' * 64}/v1", "http://" + "a." * 40_000 + "b/v1",
])  # fmt: skip
def test_addresses_that_the_http_library_cannot_use(url):
    # Found by the first call, they are a traceback of that library, after local models have run.
    with pytest.raises(ValueError, match="base_url must be an http or https address") as got:
        Endpoint(base_url=url)
    assert len(str(got.value)) < 2500


@pytest.mark.parametrize("url", [
    "http://h/v1", "https://h:65535/v1", "http://h:1", "http://[::1]:8000/v1", "http://[::1]/v1",
    "http://model_server:8000/v1", "http://\xe9.example/v1", "http://h.example./v1",
    "http://h/a:b/@v1",
])  # fmt: skip
def test_good_addresses(url):
    assert Endpoint(base_url=url).base_url == url


def test_an_address_that_cannot_be_read_is_not_shown():
    with pytest.raises(ValueError, match="is no address") as got:
        Endpoint(base_url=f"http://user:{SECRET}@[::1/v1")
    assert SECRET not in str(got.value)


@pytest.mark.parametrize("fields", [
    {"key_variable": SECRET}, {"base_url": f"http://user:{SECRET}@host/v1"},
    {"base_url": f"http://host/v1?key={SECRET}"}, {"base_url": f"http://host/v1#{SECRET}"},
])
def test_a_key_in_the_wrong_place_is_refused_and_not_shown(fields):
    with pytest.raises(ValueError, match="api.(key_variable|base_url)") as got:
        Endpoint(**({"base_url": URL} | fields))
    assert SECRET not in str(got.value)


@pytest.mark.parametrize(("field", "value"), [
    ("concurrency", 0), ("attempts", True), ("attempts", 1.5), ("deadline", 0.0),
    ("read_timeout", float("nan")), ("input_price", -1.0), ("active_params", 0),
    ("max_reply_bytes", 0), ("token_field", "tokens"), ("reply_model", None),
    ("deadline", 10**400), ("input_price", 10**400),
])
def test_bad_values_name_the_field(field, value):
    with pytest.raises(ValueError, match=f"api.{field}"):
        Endpoint(base_url=URL, **{field: value})


def test_the_key_comes_from_its_variable_only(monkeypatch):
    endpoint = Endpoint(base_url=URL, key_variable="TEST_EXPERT_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")
    monkeypatch.delenv("TEST_EXPERT_KEY", raising=False)
    with pytest.raises(ValueError, match="environment variable TEST_EXPERT_KEY, which should hold"):
        endpoint.key()
    monkeypatch.setenv("TEST_EXPERT_KEY", f" {SECRET}\n")
    assert endpoint.key() == SECRET
    assert SECRET not in repr(endpoint)
    assert Endpoint(base_url=URL).key() == ""


@pytest.mark.parametrize("inside", ["\n", "\r\nX-Evil: ", "\t", " ", "\x07", "\x7f", "\xa0", "\xe9",
                                    "\u200b", "\u0661"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(monkeypatch, inside):
    # Sent, it would be the text of the HTTP library's error, whole.
    endpoint = Endpoint(base_url=URL, key_variable="TEST_EXPERT_KEY")
    monkeypatch.setenv("TEST_EXPERT_KEY", f"sk-first{inside}second")
    with pytest.raises(ValueError, match="variable TEST_EXPERT_KEY holds no key") as got:
        endpoint.key()
    assert not any(part in str(got.value) for part in ("sk-", "first", "second"))
    monkeypatch.setenv("TEST_EXPERT_KEY", "!#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~")
    assert endpoint.key() == "!#$%&'()*+,-./09:;<=>?@AZ[\\]^_`az{|}~"


@pytest.mark.parametrize(("answered", "right"), [
    ("m", True), ("m@main", True), ("m-2024-07-18", True), ("m:1", True), ("m-v2.1", True),
    ("m-mini", False), ("m2", False), ("other", False), ("", False), ("org/m", False),
])
def test_names_of_replies(answered, right):
    assert Endpoint(base_url=URL).accepts("m", answered) is right
    assert Endpoint(base_url=URL, reply_model="*").accepts("m", answered)
    assert Endpoint(base_url=URL, reply_model="n").accepts("m", answered) is False
    assert Endpoint(base_url=URL, reply_model="n").accepts("m", "n")


def test_prices_are_for_a_million_tokens():
    # F08: 1000 in, 2000 out (1800 of them thinking) at 1 and 4: .009; without thinking .0018.
    endpoint = Endpoint(base_url=URL, input_price=1.0, output_price=4.0)
    assert endpoint.price(1000, 2000) == pytest.approx(0.009)


def spec(**changes):
    fields = {"name": "B3", "model": "m", "provider": "openai", "manager": "x",
              "api": Endpoint(base_url=URL)}
    return ExpertSpec(**(fields | changes))


def test_specs_say_what_they_need():
    assert spec().remote and not ExpertSpec(name="A", model="m").remote
    with pytest.raises(ValueError, match="'B3': provider 'openai' needs api with at least a b"):
        spec(api=None)
    with pytest.raises(ValueError, match="'B3': provider 'local' needs no api"):
        spec(provider="local")
    with pytest.raises(ValueError, match="'B3': chat_template must be None"):
        spec(chat_template="plain")


def test_servers_are_part_of_the_identity():
    other = spec(api=Endpoint(base_url="http://127.0.0.1:8001/v1"))
    assert spec().identity != other.identity
    assert spec().identity == spec(api=Endpoint(base_url=URL, concurrency=2)).identity


def test_the_orchestrator_is_local():
    head = spec(name="M0", manager=None)
    with pytest.raises(ValueError, match="orchestrator 'M0' is behind an API"):
        ExpertRegistry((spec(),), head, ("x",))


def test_a_pool_goes_to_json_and_back_with_names_as_written(tmp_path, monkeypatch):
    entries = {
        "managers": ["x"],
        # A folder of this name exists, but here it is the server's name for a model.
        "agents": {"B3": {"model": "checkpoints/logic", "provider": "openai", "manager": "x",
                          "api": {"base_url": URL, "active_params": 7}}},
        "orchestrator": {"model": "checkpoints/orchestrator"},
    }  # fmt: skip
    monkeypatch.chdir(tmp_path)
    registry = registry_of(entries)
    assert registry["B3"].model == "checkpoints/logic"
    assert registry_of(pool_entries(registry)) == registry
    assert registry.unknown_params == ()
    entries["agents"]["B3"]["api"] = {"base_url": URL}
    assert registry_of(entries).unknown_params == ("B3",)


@pytest.mark.parametrize(("api", "said"), [
    ({}, "pool: B3: api needs a base_url"),
    ({"base_url": URL, "timeout": 3}, r"unknown entries \['timeout'\]; choose from .*read_timeout"),
])
def test_entries_are_checked(api, said):
    entries = {"managers": ["x"], "orchestrator": {"model": "m"},
               "agents": {"B3": {"model": "m", "provider": "openai", "manager": "x", "api": api}}}
    with pytest.raises(ValueError, match=said):
        registry_of(entries)


def test_endpoints_from_entries():
    assert endpoint_of({"base_url": URL, "concurrency": 2}).concurrency == 2
